"""Checks that runs are comparable: each fold on its own test slides, all runs on the same."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from sgpmil.bags.splits import Fold
from sgpmil.bags.tables import listed
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.summary import FoldMetrics, measure_fold
from sgpmil.notebook import counted

TestSets = Literal["one", "same", "overlapping", "disjoint"]


@dataclass(frozen=True, slots=True, eq=False)
class FoldPredictions:
    """Predictions of a fold's test slides, and their metrics.

    Args:
        metrics: Metrics of the fold, with its name.
        table: Predictions of the test slides.
        split: Slides that the fold was trained, validated and tested on, where known.
    """

    metrics: FoldMetrics
    table: PredictionTable
    split: Fold | None = None

    @property
    def name(self) -> str:
        """Name of the fold."""
        return self.metrics.fold

    @staticmethod
    def of(name: str, table: PredictionTable, split: Fold | None = None) -> "FoldPredictions":
        """Check and evaluate the predictions of a fold.

        The scores of instances are measured and dropped: those of several runs together may not
        fit in memory.

        Raises:
            PredictionError: No slide has a label, or the slides are not the fold's test slides.
        """
        if split is not None:
            check_own_test_slides(split, table)
        metrics = measure_fold(table, name)
        slim = tuple(replace(prediction, instances=None) for prediction in table.predictions)
        return FoldPredictions(metrics, replace(table, predictions=slim), split)


@dataclass(frozen=True, slots=True)
class FoldDesign:
    """Overlap of the slides of a run's folds.

    Args:
        test_sets: ``one`` fold alone, the ``same`` test slides in all folds, ``overlapping`` ones,
            or ``disjoint`` ones.
        num_test: Number of labelled test slides of each fold.
        num_train: Number of training slides of each fold; empty where a fold's are unknown.
        shared_training: Mean over pairs of folds of the share of the smaller training set that
            is also in the other; NaN where unknown, and with one fold.
    """

    test_sets: TestSets
    num_test: tuple[int, ...]
    num_train: tuple[int, ...]
    shared_training: float


def check_own_test_slides(fold: Fold, table: PredictionTable) -> None:
    """Refuse predictions of a fold's model for any slides but the fold's own test slides.

    A test set of another fold is no test set: most of its slides are in this fold's training
    list. (The published protocol builds one fold's test set once and judges the models of all
    folds on it; where test sets differ from fold to fold, that scores models on slides they were
    trained on.)

    Args:
        fold: Slides that the fold was trained, validated and tested on.
        table: Predictions of the fold's model.

    Raises:
        PredictionError: A slide predicted was trained or validated on, is not in the test list,
            or a test slide is missing.
    """
    predicted = set(table.slide_ids)
    seen = {
        part: sorted(predicted & set(slides))
        for part, slides in (("training", fold.train), ("validation", fold.val))
    }
    found = [f"{len(slides)} are in its {part} list" for part, slides in seen.items() if slides]
    if found:
        example = next(slides[0] for slides in seen.values() if slides)
        raise PredictionError(
            f"Expected predictions of fold {fold.name} for its own test slides, but of the "
            f"{counted(len(predicted), 'slide')} predicted {' and '.join(found)}, such as "
            f"'{example}'. "
            "Judge each fold's model on the test list of that fold alone."
        )
    test = set(fold.test)
    missing, foreign = sorted(test - predicted), sorted(predicted - test)
    if missing or foreign:
        parts = [f"{len(missing)} are missing ({listed(missing)})"] if missing else []
        if foreign:
            parts.append(f"{len(foreign)} are not in its test list ({listed(foreign)})")
        raise PredictionError(
            f"Expected predictions of fold {fold.name} for its {len(test)} test slides, but "
            f"{' and '.join(parts)}. Predict the whole test list of the fold and nothing else."
        )


def check_same_test_sets(runs: Mapping[str, Sequence[FoldPredictions]]) -> None:
    """Refuse runs whose test slides, labels or classes differ in a fold; order does not matter.

    Args:
        runs: Folds of each run, the same ones in the same order.

    Raises:
        PredictionError: They differ; the message names the fold and a slide.
    """
    (reference, reference_folds), *others = runs.items()
    for run, folds in others:
        for ours, theirs in zip(reference_folds, folds, strict=True):
            _check_classes(reference, ours, run, theirs)
            _check_slides(reference, ours, run, theirs)


def fold_design(folds: Sequence[FoldPredictions]) -> FoldDesign:
    """Measure how folds share test and training slides."""
    tested = [frozenset(fold.table.slide_ids) for fold in folds]
    if len(tested) == 1:
        test_sets: TestSets = "one"
    elif len(set(tested)) == 1:
        test_sets = "same"
    else:
        shares = any(one & other for one, other in combinations(tested, 2))
        test_sets = "overlapping" if shares else "disjoint"
    trained = [frozenset(fold.split.train) for fold in folds if fold.split is not None]
    all_known = len(trained) == len(folds) and all(trained)
    pairs = list(combinations(trained, 2)) if all_known else []
    shares_of = [len(one & other) / min(len(one), len(other)) for one, other in pairs]
    return FoldDesign(
        test_sets=test_sets,
        num_test=tuple(fold.metrics.slide.num_slides for fold in folds),
        num_train=tuple(len(slides) for slides in trained) if all_known else (),
        shared_training=math.fsum(shares_of) / len(shares_of) if shares_of else math.nan,
    )


def _check_classes(
    reference: str, ours: FoldPredictions, run: str, theirs: FoldPredictions
) -> None:
    target, other = ours.table.target, theirs.table.target
    # A file of another system may number its classes without naming them.
    unnamed = ClassTarget.numbered(target.num_outputs)
    if target.num_outputs == other.num_outputs and (
        target.names == other.names or unnamed.names in (target.names, other.names)
    ):
        return
    raise PredictionError(
        f"Expected the same classes in every run, but fold {ours.name} has {target} in "
        f"'{reference}' and {other} in '{run}'. Compare runs of one task."
    )


def _check_slides(reference: str, ours: FoldPredictions, run: str, theirs: FoldPredictions) -> None:
    labels, other_labels = _labels(ours), _labels(theirs)
    differing = sorted(labels.keys() ^ other_labels.keys())
    if differing:
        slide = differing[0]
        holder, lacking = (reference, run) if slide in labels else (run, reference)
        raise PredictionError(
            f"Expected the same test slides in every run, but in fold {ours.name} '{slide}' is in "
            f"'{holder}' and not in '{lacking}' (in all {counted(len(differing), 'slide')}). "
            "Compare runs of the same splits."
        )
    relabelled = sorted(slide for slide in labels if labels[slide] != other_labels[slide])
    if relabelled:
        slide = relabelled[0]
        raise PredictionError(
            f"Expected the same labels in every run, but in fold {ours.name} '{slide}' has label "
            f"{labels[slide]} in '{reference}' and {other_labels[slide]} in '{run}' "
            f"(in all {counted(len(relabelled), 'slide')}). Compare runs of the same labels "
            "and classes."
        )


def _labels(fold: FoldPredictions) -> dict[str, int | None]:
    return {prediction.slide_id: prediction.label for prediction in fold.table.predictions}
