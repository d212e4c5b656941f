"""Tables with ties, zeros, one class, and wrong and right slides in any number."""

import numpy as np
from hypothesis import strategies as st

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable


@st.composite
def slides(draw, min_slides=1, max_slides=12, min_classes=1, max_classes=5):
    """Draw small whole numbers (slides, samples, classes), and labels or a kind of labels.

    The table is made in the test (`built`), for the checks of its types use chance themselves.
    """
    num_classes = draw(st.integers(min_classes, max_classes))
    num_samples = draw(st.integers(1, 3))
    num_slides = draw(st.integers(min_slides, max_slides))
    row = st.lists(st.integers(0, 4), min_size=num_classes, max_size=num_classes).filter(any)
    sample = st.lists(row, min_size=num_samples, max_size=num_samples)
    counts = draw(st.lists(sample, min_size=num_slides, max_size=num_slides))
    label = st.integers(0, num_classes - 1)
    labels = st.lists(label, min_size=num_slides, max_size=num_slides)
    return counts, draw(st.one_of(labels, st.sampled_from(["right", "wrong"])))


def built(drawn):
    """Make the table: full of ties, and with probabilities of exactly 0 and 1."""
    counts, labels = drawn
    samples = np.array(counts, dtype=np.float64)
    samples /= samples.sum(axis=2, keepdims=True)
    num_classes = samples.shape[2]
    top = samples.mean(axis=1).argmax(axis=1)
    if labels == "right":
        labels = top
    elif labels == "wrong":
        labels = (top + 1) % num_classes
    predictions = tuple(
        Prediction.from_samples(f"s{i:03d}", f"case{i}", int(label), own)
        for i, (own, label) in enumerate(zip(samples, labels, strict=True))
    )
    return PredictionTable(predictions, ClassTarget(tuple(f"c{c}" for c in range(num_classes))))


def model_table(num_slides, num_classes=3, seed=0, sharpness=1.0, name="s"):
    """Slides whose labels are drawn from the probabilities, which are then sharpened."""
    rng = np.random.default_rng(seed)
    true = rng.dirichlet(np.ones(num_classes), size=num_slides)
    labels = (rng.uniform(size=(num_slides, 1)) > true.cumsum(axis=1)).sum(axis=1)
    told = np.maximum(true, 1e-30) ** sharpness
    told /= told.sum(axis=1, keepdims=True)
    predictions = []
    for i, (row, label) in enumerate(zip(told, labels, strict=True)):
        samples = rng.dirichlet(200 * row + 1e-3, size=10)
        spread = samples - samples.mean(axis=0)
        prediction = Prediction.from_samples(f"{name}{i:04d}", f"case{i}", int(label), row[None])
        predictions.append(
            Prediction(
                slide_id=prediction.slide_id,
                case_id=prediction.case_id,
                label=prediction.label,
                probs=row,
                std=spread.std(axis=0, ddof=1),
                entropy=prediction.entropy,
                expected_entropy=0.8 * prediction.entropy,
                mutual_information=0.2 * prediction.entropy * rng.uniform(),
            )
        )
    return PredictionTable(
        tuple(predictions), ClassTarget(tuple(f"class {c}" for c in range(num_classes)))
    )
