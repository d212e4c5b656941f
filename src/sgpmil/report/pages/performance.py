"""How right the run is: the fold table, and what is drawn of it."""

import math
from collections.abc import Sequence

from sgpmil.evaluation.assessment import Assessment
from sgpmil.evaluation.bootstrap import Intervals
from sgpmil.evaluation.metrics import SLIDE_METRICS
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import pooled_table
from sgpmil.report.figures.confusion_figures import confusion_figure
from sgpmil.report.figures.curves import reliability_figure, roc_figure
from sgpmil.report.figures.precision_recall_figures import precision_recall_figure
from sgpmil.report.pages.blocks import Block, Pictures, Prose, Section, Table
from sgpmil.report.pages.images import plot_image
from sgpmil.report.pages.number_texts import metric_name, told, told_range

__all__ = ["calibration_section", "error_section", "fold_section"]

_SHOWN = ("auc", "balanced_accuracy", "average_precision", "f1", "ece", "nll")


def fold_section(assessment: Assessment) -> Section:
    """Tell every fold's numbers with their intervals, and all metrics over folds.

    Args:
        assessment: What was measured.
    """
    known = [one for one in assessment.intervals if one is not None]
    blocks: list[Block] = [_fold_table(assessment)]
    if known:
        blocks.append(
            Prose(
                f"In brackets: {known[0].level:.0%} bootstrap intervals over patients "
                f"({known[0].rounds:,} rounds). They speak of other patients for the same trained "
                "model; the standard deviation over folds also holds what other training slides "
                "change. A perfect number has an interval of no width, which is no certainty."
            )
        )
    blocks.append(_metric_table(assessment))
    blocks += [Prose(note, "note") for note in dict.fromkeys(assessment.notes)]
    return Section("folds", "Results of the folds", tuple(blocks))


def error_section(assessment: Assessment, tests: Sequence[PredictionTable]) -> Section:
    """Draw ROC and precision–recall curves and the confusion matrix.

    Args:
        assessment: What was measured.
        tests: Predictions of each fold's labelled test slides.
    """
    names = assessment.class_names
    positive = f"of “{names[1]}”" if len(names) == 2 else "of each class against the rest"
    images = (
        plot_image(roc_figure(tests), f"ROC curves {positive}."),
        plot_image(precision_recall_figure(tests), f"Precision–recall curves {positive}."),
        plot_image(
            confusion_figure(assessment.confusion, names),
            f"Confusion matrix of {int(assessment.confusion.sum())} test predictions.",
        ),
    )
    captions = (
        f"True against false positives, {positive}.",
        f"Precision against recall, {positive}; unlike ROC it shows what rarity costs.",
        "Test slides of all folds by label and predicted class; the ground is the share of the "
        "row.",
    )
    return Section(
        "errors", "Ranking and errors", (Pictures(images, captions), _recalls(assessment))
    )


def calibration_section(assessment: Assessment, tests: Sequence[PredictionTable]) -> Section:
    """Draw whether confidence is accuracy, and take the Brier score apart.

    Args:
        assessment: What was measured.
        tests: Predictions of each fold's labelled test slides.
    """
    parts = assessment.brier
    rows = tuple(
        (fold.fold, *(told(getattr(part, name)) for name in _BRIER))
        for fold, part in zip(assessment.folds, parts, strict=True)
    )
    image = plot_image(
        reliability_figure(pooled_table(tests)), "Reliability diagram: accuracy against confidence."
    )
    caption = (
        "Of a calibrated model, the share of right slides at each confidence is that confidence: "
        "the dots lie on the diagonal. The slides of all folds together."
    )
    table = Table(
        ("Fold", "Brier score", "Reliability (less is better)", "Resolution", "Uncertainty"),
        rows,
        "The Brier score is reliability − resolution + uncertainty (and what bins leave over).",
    )
    return Section("calibration", "Calibration", (Pictures((image,), (caption,)), table))


_BRIER = ("score", "reliability", "resolution", "uncertainty")


def _fold_table(assessment: Assessment) -> Table:
    has_intervals = bool(assessment.intervals)
    intervals: Sequence[Intervals | None] = (
        assessment.intervals if has_intervals else [None] * len(assessment.folds)
    )
    rows = [
        (
            fold.fold,
            f"{fold.slide.num_slides:,}",
            *(_value(fold.slide[name], own, name) for name in _SHOWN),
        )
        for fold, own in zip(assessment.folds, intervals, strict=True)
    ]
    if len(rows) > 1:
        means = {metric.name: metric for metric in assessment.summary}
        total = sum(fold.slide.num_slides for fold in assessment.folds)
        rows.append(
            (
                "mean ± sd",
                f"{total:,}",
                *(f"{told(means[n].mean)} ± {told(means[n].sd)}" for n in _SHOWN),
            )
        )
    return Table(
        ("Fold", "Slides", *(metric_name(name) for name in _SHOWN)),
        tuple(rows),
        "Each fold's model on its own test slides, which it was not trained on.",
    )


def _value(value: float, intervals: Intervals | None, name: str) -> str:
    if intervals is None or math.isnan(value):
        return told(value)
    found = intervals.of(name)
    return f"{told(value)}\n[{told_range(found.low, found.high)}]"


def _metric_table(assessment: Assessment) -> Table:
    of_slides = {metric.key for metric in SLIDE_METRICS}
    single = len(assessment.folds) == 1
    rows = tuple(
        (
            metric_name(metric.name),
            told(metric.mean),
            *(() if single else (told(metric.sd), told(_least(metric.values)))),
            *(() if single else (told(_most(metric.values)),)),
        )
        for metric in assessment.summary
        if metric.name in of_slides and not math.isnan(metric.mean)
    )
    header = ("Metric", "Value") if single else ("Metric", "Mean", "SD", "Least", "Greatest")
    what = "All metrics over slides." if single else "All metrics over slides, over the folds."
    return Table(header, rows, what)


def _least(values: Sequence[float]) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def _most(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _recalls(assessment: Assessment) -> Table:
    confusion = assessment.confusion
    rows = []
    for index, name in enumerate(assessment.class_names):
        right, labelled = int(confusion[index, index]), int(confusion[index].sum())
        called = int(confusion[:, index].sum())
        rows.append(
            (
                name,
                f"{labelled:,}",
                f"{right:,}",
                told(right / labelled if labelled else math.nan),
                told(right / called if called else math.nan),
            )
        )
    return Table(
        ("Class", "Slides", "Right", "Recall", "Precision"),
        tuple(rows),
        "Of each class: how many of its slides were found, and how many so called are of it.",
    )
