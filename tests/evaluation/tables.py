"""Tables of random predictions for the tests of this folder."""

import numpy as np

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable


def table_of(probs, labels, names=None, kind=ClassTarget) -> PredictionTable:
    probs = np.asarray(probs, dtype=np.float64)
    predictions = tuple(
        Prediction.from_samples(
            f"slide-{i:03d}", f"case-{i // 2}", None if label is None else int(label), row[None]
        )
        for i, (row, label) in enumerate(zip(probs, labels, strict=True))
    )
    return PredictionTable(
        predictions, kind(names or tuple(f"c{c}" for c in range(probs.shape[1])))
    )


def random_table(num_slides=40, num_classes=2, seed=0, num_samples=8) -> PredictionTable:
    rng = np.random.default_rng(seed)
    predictions = []
    for i in range(num_slides):
        centre = rng.dirichlet(np.ones(num_classes))
        samples = rng.dirichlet(20 * centre + 0.1, size=num_samples)
        label = int(rng.choice(num_classes, p=centre))
        predictions.append(Prediction.from_samples(f"{i:04d}", f"case{i}", label, samples))
    return PredictionTable(
        tuple(predictions), ClassTarget(tuple(f"class {c}" for c in range(num_classes)))
    )


def random_scores(num=30, num_classes=2, seed=0, **changes) -> InstanceScores:
    rng = np.random.default_rng(seed)
    weight, logit = rng.gamma(0.7, size=num), rng.normal(size=(num, num_classes))
    spread = 0.3 * weight
    arguments = {
        "attention_mean": weight,
        "attention_std": spread,
        "evidence_mean": weight[:, None] * logit,
        "evidence_std": spread[:, None] * np.abs(logit),
        "coords": rng.integers(0, 100, size=(num, 2)) * 256,
        "patch_size": 256,
        "instance_labels": rng.integers(0, 2, size=num),
    }
    return InstanceScores(**(arguments | changes))
