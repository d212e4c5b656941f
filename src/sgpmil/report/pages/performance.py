"""Sections of results: folds, errors, calibration, uncertainty, localisation."""

import math
from collections.abc import Sequence

from sgpmil.evaluation.assessment import Assessment
from sgpmil.evaluation.bootstrap import Intervals
from sgpmil.evaluation.localisation.lesion_detection import FALSE_POSITIVE_RATES, LesionRow
from sgpmil.evaluation.localisation.localisation import LOCALISATION_METRICS, LocalisationRow
from sgpmil.evaluation.metrics import SLIDE_METRICS
from sgpmil.evaluation.prediction import CLASS_SCORES, listed_scores
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import (
    FoldsUncertainty,
    UncertaintyRow,
    pooled_table,
)
from sgpmil.evaluation.uncertainty.error_detection import ErrorDetection, error_detection
from sgpmil.evaluation.uncertainty.measures import COVERAGES, UNCERTAINTY_MEASURES
from sgpmil.notebook import counted
from sgpmil.report.figures.curves import (
    confusion_figure,
    precision_recall_figure,
    reliability_figure,
    roc_figure,
)
from sgpmil.report.figures.uncertainty_figures import (
    correct_wrong_figure,
    risk_coverage_figure,
    set_figure,
    temperature_figure,
)
from sgpmil.report.pages.blocks import Block, DataImage, Pictures, Prose, Section, Table, plot_image
from sgpmil.report.pages.texts import format_mean, format_number, format_range, metric_name

_SHOWN = ("auc", "balanced_accuracy", "average_precision", "f1", "ece", "nll")


def fold_section(assessment: Assessment) -> Section:
    """List every fold's metrics with their intervals, and all metrics over folds."""
    known = [one for one in assessment.intervals if one is not None]
    blocks: list[Block] = [_fold_table(assessment)]
    if known:
        blocks.append(
            Prose(
                f"In brackets: {known[0].level:.0%} bootstrap intervals over patients "
                f"({known[0].rounds:,} rounds). They describe other patients for the same trained "
                "model; the standard deviation over folds also holds what other training slides "
                "change. Two patients of whom the model knows nothing are drawn along, so that a "
                "perfect number of few slides has a wide interval, too."
            )
        )
    blocks.append(_metric_table(assessment))
    blocks += [Prose(note, "note") for note in dict.fromkeys(assessment.notes)]
    return Section("folds", "Results of the folds", tuple(blocks))


def error_section(assessment: Assessment, tests: Sequence[PredictionTable]) -> Section:
    """Draw ROC and precision–recall curves and the confusion matrix.

    Args:
        assessment: The measurements.
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


def calibration_section(
    assessment: Assessment, tests: Sequence[PredictionTable], prevalence: Sequence[str] = ()
) -> Section:
    """Draw whether confidence is accuracy, and take the Brier score apart.

    Args:
        assessment: The measurements.
        tests: Predictions of each fold's labelled test slides.
        prevalence: Sentences on the class shares that the probabilities are for.
    """
    parts = assessment.brier
    rows = tuple(
        (fold.fold, *(format_number(getattr(part, name)) for name in _BRIER))
        for fold, part in zip(assessment.folds, parts, strict=True)
    )
    image = plot_image(
        reliability_figure(pooled_table(tests)), "Reliability diagram: accuracy against confidence."
    )
    caption = (
        "Of a calibrated model, the share of right slides at each confidence is that confidence: "
        "the dots lie on the diagonal."
    )
    if len(tests) > 1:
        caption += (
            " The slides of all folds together: the ECE and ACE above the diagram are of all of "
            "them, those of tables and checks the means of folds."
        )
    table = Table(
        ("Fold", "Brier score", "Reliability (less is better)", "Resolution", "Uncertainty"),
        rows,
        "The Brier score is reliability − resolution + uncertainty (and what bins leave over).",
    )
    notes = (Prose(sentence) for sentence in prevalence)
    return Section("calibration", "Calibration", (*notes, Pictures((image,), (caption,)), table))


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
                *(f"{format_number(means[n].mean)} ± {format_number(means[n].sd)}" for n in _SHOWN),
            )
        )
    return Table(
        ("Fold", "Slides", *(metric_name(name) for name in _SHOWN)),
        tuple(rows),
        "Each fold's model on its own test slides, which it was not trained on.",
    )


def _value(value: float, intervals: Intervals | None, name: str) -> str:
    if intervals is None or math.isnan(value):
        return format_number(value)
    found = intervals.of(name)
    return f"{format_number(value)}\n[{format_range(found.low, found.high)}]"


def _metric_table(assessment: Assessment) -> Table:
    of_slides = {metric.key for metric in SLIDE_METRICS}
    single = len(assessment.folds) == 1
    rows = tuple(
        (
            metric_name(metric.name),
            format_number(metric.mean),
            *(() if single else (format_number(metric.sd), format_number(_least(metric.values)))),
            *(() if single else (format_number(_most(metric.values)),)),
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
                format_number(right / labelled if labelled else math.nan),
                format_number(right / called if called else math.nan),
            )
        )
    return Table(
        ("Class", "Slides", "Right", "Recall", "Precision"),
        tuple(rows),
        "Of each class: how many of its slides were found, and how many so called are of it.",
    )


def uncertainty_section(assessment: Assessment, tests: Sequence[PredictionTable]) -> Section:
    """Show how well uncertainty predicts errors, and what calibration changes.

    Args:
        assessment: The measurements.
        tests: Predictions of each fold's labelled test slides.
    """
    found = assessment.uncertainty
    pooled = pooled_table(tests)
    detections = [error_detection(pooled, measure) for measure in UNCERTAINTY_MEASURES]
    known = [one for one in detections if one.is_known]
    blocks: list[Block]
    if known:
        blocks = [
            Prose(
                f"{known[0].num_wrong} of {counted(len(pooled), 'prediction')} are wrong. A useful "
                "uncertainty is higher for these: error AUROC is the chance that a wrong "
                "prediction is less certain than a right one (0.5: no better than chance). "
                f"Intervals ({known[0].level:.0%}) count each of "
                f"{counted(known[0].num_independent, 'patient')} once. Compare every measure with "
                "“max probability”, which needs no posterior."
            ),
            _detection_table(known, found),
            Pictures(*_pooled(pooled)),
        ]
    else:
        finding = error_detection(pooled, "max_probability").sentence
        blocks = [
            Prose(finding),
            Prose("So there are no curves and tests of errors here.", "note"),
        ]
    if found.calibration_rows:
        several = len(found.folds) > 1
        blocks += [
            Pictures(*_calibrated(tests, assessment)),
            Table(
                ("", "Mean ± SD", "All folds together") if several else ("", "Value"),
                tuple(_cells(row, several) for row in found.calibration_rows),
                "What validation slides bring: calibrated confidence and prediction sets.",
            ),
        ]
    else:
        blocks.append(
            Prose(
                "No temperature and no prediction sets are fitted here. "
                + (found.folds[0].calibration_notes or ("There are no validation slides.",))[0]
            )
        )
    return Section("uncertainty", "Uncertainty", tuple(blocks))


def _cells(row: UncertaintyRow, several: bool) -> tuple[str, ...]:
    if not several:
        return row.name, format_number(row.mean)
    spread = "" if math.isnan(row.sd) else f" ± {format_number(row.sd)}"
    return row.name, f"{format_number(row.mean)}{spread}", format_number(row.pooled)


def _detection_table(known: Sequence[ErrorDetection], found: FoldsUncertainty) -> Table:
    """List how well each measure finds the errors, over the slides of all folds together."""
    selective = {one.measure: one.selective for one in found.pooled}
    at = COVERAGES.index(0.8)
    rows = tuple(
        (
            one.measure.replace("_", " "),
            f"{format_number(one.area)}\n[{format_range(one.low, one.high)}]",
            format_number(selective[one.measure].aurc),
            format_number(selective[one.measure].excess_aurc),
            format_number(selective[one.measure].accuracies[at]),
        )
        for one in known
    )
    return Table(
        ("Uncertainty", "Error AUROC", "AURC", "Excess AURC", f"Accuracy at {COVERAGES[at]:.0%}"),
        rows,
        "How well each measure of uncertainty finds the errors; all folds together.",
    )


def _pooled(pooled: PredictionTable) -> tuple[tuple[DataImage, ...], tuple[str, ...]]:
    images = (
        plot_image(
            correct_wrong_figure(pooled), "Box plots of uncertainty, correct and wrong predictions."
        ),
        plot_image(risk_coverage_figure(pooled), "Risk–coverage curves."),
    )
    captions = (
        "Uncertainty of correct and wrong predictions, with Welch's test; all folds together.",
        "Errors that remain when the least certain slides are handed to a human. Lower is better; "
        "the oracle refuses exactly the wrong ones.",
    )
    return images, captions


def _calibrated(
    tests: Sequence[PredictionTable], assessment: Assessment
) -> tuple[tuple[DataImage, ...], tuple[str, ...]]:
    found = assessment.uncertainty
    images: list[DataImage] = []
    captions: list[str] = []
    scaled = [fold.scaled.temperature for fold in found.folds if fold.scaled is not None]
    if len(scaled) == len(tests):
        images.append(
            plot_image(
                temperature_figure(tests, scaled),
                "Reliability before and after temperature scaling.",
            )
        )
        bias = " and bias of each class" if scaled[0].bias else ""
        captions.append(f"Temperature scaling{bias}, fitted on each fold's validation slides.")
    if found.pooled_sets:
        images.append(plot_image(set_figure(found.pooled_sets), "Coverage and size of sets."))
        captions.append(
            "Prediction sets: how often they hold the label, of all slides and of each class, and "
            "how many classes they name."
        )
    return tuple(images), tuple(captions)


def localisation_section(assessment: Assessment | None) -> Section:
    """Show how well the scores of patches find the positive ones.

    Args:
        assessment: The measurements; None where no slide has a label.
    """
    found = None if assessment is None else assessment.instances
    if found is None:
        missing = Prose(
            "No patch has a label, so it cannot be measured whether the model looks at the right "
            "places. Annotations label them: sgpmil report … --annotations FOLDER.",
            "note",
        )
        return Section("localisation", "Localisation", (missing,))
    groups: dict[tuple[str, str], list[LocalisationRow]] = {}
    for row in found.localisation:
        groups.setdefault((row.score, row.scope), []).append(row)
    rows = tuple(
        (
            score,
            scope.replace("_", " "),
            *(format_mean([getattr(row, name) for row in own]) for name in LOCALISATION_METRICS),
            f"{sum(row.num_instances for row in own):,}",
        )
        for (score, scope), own in groups.items()
    )
    names = [] if assessment is None else assessment.class_names
    wanted = f"patches of “{names[1]}”" if len(names) == 2 else "positive patches"
    blocks: list[Block] = [
        Prose(
            f"How well {listed_scores(CLASS_SCORES)} ranks {wanted} above others, as means "
            "over folds: where the model looked, a patch's share in the logit, and what the "
            "model says of the patch alone. “per slide” averages over positive slides with both "
            "kinds of patch; “pooled” takes all patches together, those of negative slides "
            "included. Uniform and random scores are baselines that know nothing of the patches; "
            "uniform scores of a slide sum to 1, so that pooled they rank slides by their size."
        ),
        Table(
            (
                "Score",
                "Scope",
                *(metric.short_name for metric in LOCALISATION_METRICS.values()),
                "Patches",
            ),
            rows,
            "Localisation. Thresholds are chosen on validation slides.",
            num_words=2,
        ),
    ]
    if found.lesions:
        blocks += _lesions(found.lesions)
    notes = [row.note for row in found.localisation] + [row.note for row in found.lesions]
    blocks += [Prose(note, "note") for note in dict.fromkeys(notes) if note]
    return Section("localisation", "Localisation", tuple(blocks))


def _lesions(rows: Sequence[LesionRow]) -> list[Block]:
    groups: dict[str, list[LesionRow]] = {}
    for row in rows:
        if row.froc is not None:
            groups.setdefault(row.score, []).append(row)
    if not groups:
        return []
    cells = []
    for score, own in groups.items():
        curves = [row.froc for row in own if row.froc is not None]
        at_rates = zip(*(curve.sensitivities for curve in curves), strict=True)
        cells.append(
            (
                score,
                *(format_mean(list(values)) for values in at_rates),
                format_mean([curve.mean for curve in curves]),
                f"{sum(curve.num_lesions for curve in curves if not math.isnan(curve.mean)):,}",
            )
        )
    return [
        Table(
            ("Score", *(f"{rate:g} FP" for rate in FALSE_POSITIVE_RATES), "Mean", "Lesions"),
            tuple(cells),
            "Lesions found (FROC as of CAMELYON16): sensitivity at false positives a slide, means "
            "over folds.",
        )
    ]
