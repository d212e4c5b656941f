"""Tables of predictions with scored and labelled instances, for the tests of this folder."""

import numpy as np

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable

from .tables import random_scores


def instance_table(
    num_slides=10, num_classes=2, seed=0, num_instances=25, names=None, **changes
) -> PredictionTable:
    """Slides of every class; those of class 0 have negative instances alone."""
    rng = np.random.default_rng(seed)
    predictions = []
    for i in range(num_slides):
        label = i % num_classes
        labels = rng.integers(-1, 2, size=num_instances) if label else np.zeros(num_instances)
        # Positive instances score somewhat higher; a few scores are tied.
        scores = random_scores(num_instances, num_classes, seed=1000 * seed + i)
        attention = np.round(scores.attention_mean + 0.5 * (labels > 0), 1)
        arguments = {
            "attention_mean": attention,
            "attention_std": scores.attention_std,
            "evidence_mean": scores.evidence_mean,
            "evidence_std": scores.evidence_std,
            "single_mean": rng.normal(size=(num_instances, num_classes)),
            "single_std": rng.random((num_instances, num_classes)),
            "coords": scores.coords,
            "patch_size": 256,
            "instance_labels": labels.astype(np.int64),
        }
        predictions.append(
            Prediction.from_samples(
                f"s{seed}-{i}",
                f"case{i}",
                label,
                rng.dirichlet(np.ones(num_classes), size=3),
                InstanceScores(**(arguments | changes)),
            )
        )
    classes = names or tuple(f"class {c}" for c in range(num_classes))
    return PredictionTable(tuple(predictions), ClassTarget(classes))


def scaled(values):
    values = np.asarray(values, dtype=np.float64)
    return (values - values.min()) / (values.max() - values.min())


def pairs(table, kind="attention", scale=True):
    """Scores and labels of the known instances of each slide, in another way than the package."""
    found = {}
    for p in table.predictions:
        if kind == "attention":
            values = p.instances.attention_mean
        else:
            e, c = p.instances.evidence_mean, p.label
            if c == 0:
                c = 1 + int(np.argmax(p.probs[1:]))
            values = e[:, c] - np.delete(e, c, axis=1).mean(axis=1)
            if kind == "single":
                values = p.instances.single_mean[:, c]
        values = scaled(values) if scale else values
        keep = [i for i, y in enumerate(p.instances.instance_labels) if y != -1]
        found[p.slide_id] = (
            np.array([values[i] for i in keep]),
            np.array([p.instances.instance_labels[i] == 1 for i in keep]),
        )
    return found
