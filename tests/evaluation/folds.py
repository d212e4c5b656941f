"""Folds with predictions, for the tests of comparisons."""

import numpy as np

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.comparison.comparability import FoldPredictions
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable


def slides_table(
    slide_ids, *, skill=1.0, seed=0, num_classes=2, cases=None, names=None, kind=ClassTarget
):
    """Predictions that are right the more often, the higher the skill; labels by slide name."""
    rng = np.random.default_rng(seed)
    predictions = []
    for slide_id in slide_ids:
        label = int(slide_id.rsplit("-", 1)[-1]) % num_classes
        logits = rng.normal(size=num_classes) + skill * np.eye(num_classes)[label]
        probs = np.exp(logits) / np.exp(logits).sum()
        case = slide_id if cases is None else cases[slide_id]
        predictions.append(Prediction.from_samples(slide_id, case, label, probs[None]))
    return PredictionTable(
        tuple(predictions), kind(names or tuple(f"class {c}" for c in range(num_classes)))
    )


def kfold(num_slides=40, num_folds=4):
    """Folds with disjoint test sets."""
    slides = [f"slide-{i}" for i in range(num_slides)]
    folds = []
    for k in range(num_folds):
        test = slides[k * num_slides // num_folds : (k + 1) * num_slides // num_folds]
        rest = [slide for slide in slides if slide not in test]
        folds.append(Fold(str(k), tuple(rest[2:]), tuple(rest[:2]), tuple(test)))
    return folds


def run_of(folds, *, skill=1.0, seed=0, with_splits=True, shuffle=False, **options):
    """Predictions of each fold's own test slides."""
    rng = np.random.default_rng(seed)
    found = []
    for k, fold in enumerate(folds):
        slides = rng.permutation(fold.test).tolist() if shuffle else fold.test
        table = slides_table(slides, skill=skill, seed=[seed, k], **options)
        found.append(FoldPredictions.of(fold.name, table, fold if with_splits else None))
    return found
