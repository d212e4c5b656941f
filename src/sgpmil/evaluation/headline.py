"""An assessment in about ten lines, with as much as the number of slides allows to say."""

import math
from collections.abc import Sequence

import numpy as np

from sgpmil.evaluation.assessment import Assessment
from sgpmil.evaluation.calibration import calibrated_ece
from sgpmil.evaluation.metrics import METRICS
from sgpmil.evaluation.prediction import CLASS_SCORES
from sgpmil.evaluation.prediction_table import PredictionTable, patient_ids
from sgpmil.evaluation.uncertainty.analysis import pooled_table
from sgpmil.evaluation.uncertainty.decisions import DecisionMetrics
from sgpmil.evaluation.uncertainty.error_detection import error_detection, least_errors
from sgpmil.evaluation.uncertainty.measures import UncertaintyMeasure
from sgpmil.notebook import counted

_MEASURE: UncertaintyMeasure = "entropy"

_METRIC_NAMES = {
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "kappa": "quadratic kappa",
    "mean_absolute_error": "error of grades",
    "nll": "NLL",
}

Line = tuple[str, str]
"""A name and what is said of it."""


def headline(
    assessment: Assessment,
    tests: Sequence[PredictionTable],
    decisions: DecisionMetrics | None = None,
    unit: str = "slides",
) -> tuple[Line, ...]:
    """Put an assessment into about ten lines of at most 60 characters.

    Lines with names of classes may be longer; what matters most comes first in them.

    Args:
        assessment: The measurements.
        tests: Predictions of each fold that were measured.
        decisions: How prediction sets and deferral turned out, where predictions carry them.
        unit: What was measured: slides or patients.

    Returns:
        The lines; the first says what was measured.
    """
    known = [test.labelled() for test in tests]
    lines = [("measured", _measured(known, unit)), ("wrong", _wrong(assessment))]
    lines += [(name, _metric(assessment, key)) for key, name in _METRIC_NAMES.items()]
    lines += [
        ("calibration", _calibration(assessment, known)),
        ("uncertainty", _uncertainty(known)),
        ("temperature, sets", _fitted(assessment)),
        *(() if decisions is None else _decisions(decisions)),
        ("AUC of patches", _patches(assessment)),
    ]
    return tuple((name, text) for name, text in lines if text)


def _measured(tests: Sequence[PredictionTable], unit: str) -> str:
    num = len({slide for test in tests for slide in test.slide_ids})
    num_patients = len({patient for test in tests for patient in patient_ids(test)})
    text = counted(num, unit.removesuffix("s"))
    if unit == "slides" and 1 < num_patients < num:
        text += f" of {num_patients:,} patients"
    if len(tests) > 1:
        text += f"; means over {len(tests)} folds"
    return text


def _class(name: str) -> str:
    return f"class {name}:" if name.isdigit() else name


def _wrong(assessment: Assessment) -> str:
    confusion = assessment.confusion
    wrong, num = int(confusion.sum() - np.trace(confusion)), int(confusion.sum())
    errors = confusion.sum(axis=1) - np.diag(confusion)
    classes = [
        f"{_class(assessment.class_names[c])} {errors[c]} of {confusion[c].sum()}"
        for c in np.argsort(-errors, kind="stable")
        if errors[c]
    ]
    return f"{wrong} of {num:,}" + (f": {', '.join(classes)}" if classes else "")


def _metric(assessment: Assessment, key: str) -> str:
    summary = next(metric for metric in assessment.summary if metric.name == key)
    if math.isnan(summary.mean):
        if METRICS[key].is_for_all:
            return f"not defined: it needs {METRICS[key].needs}"
        return ""
    text = f"{summary.mean:.3f}"
    if assessment.overall is not None:
        found = assessment.overall.of(key)
        text += f"  [{found.low:.3f}–{found.high:.3f}]"
    if key == "nll":
        chance = math.log(len(assessment.class_names))
        text += f"; by chance {chance:.3f}"
    return text


def _calibration(assessment: Assessment, tests: Sequence[PredictionTable]) -> str:
    found = next(metric for metric in assessment.summary if metric.name == "ece").mean
    low, high = calibrated_ece(*(test.probs for test in tests))
    verdict = "a fault" if found > high else "no fault shown"
    return f"ECE {found:.3f}; {low:.3f}–{high:.3f} if calibrated: {verdict}"


def _uncertainty(tests: Sequence[PredictionTable]) -> str:
    found = error_detection(pooled_table(tests), _MEASURE)
    if not found.is_known:
        rare, what = min((found.num_wrong, "wrong"), (found.num_right, "right"))
        rare_ones = "errors" if what == "wrong" else "right predictions"
        needed = least_errors(found.level)
        return f"too few {rare_ones} to judge it: {rare} {what}, {needed} needed"
    verdict = ": may be chance" if found.low <= 0.5 <= found.high else ""
    return (
        f"errors less certain in {found.area:.0%} of pairs "
        f"[{found.low * 100:.0f}–{found.high:.0%}]{verdict}"
    )


def _fitted(assessment: Assessment) -> str:
    folds = [fold for fold in assessment.uncertainty.folds if fold.scaled is not None]
    notes = [n for fold in assessment.uncertainty.folds for n in fold.calibration_notes]
    if not folds:
        left_out = [note for note in notes if "left out" in note]
        return left_out[0].partition("are left out: ")[2].rstrip(".") if left_out else ""
    values = [fold.scaled.temperature.value for fold in folds if fold.scaled is not None]
    text = f"temperature {math.fsum(values) / len(values):.2f}"
    sets = assessment.uncertainty.pooled_sets or (folds[0].sets if len(folds) == 1 else ())
    if sets:
        text += (
            f"; sets of {sets[0].mean_size:.2f} classes cover {sets[0].coverage:.0%} "
            f"({sets[0].nominal:.0%} asked)"
        )
    return text


def _decisions(found: DecisionMetrics) -> tuple[Line, ...]:
    if not found.num_slides:
        return (("decisions", f"not measured: seen before ({counted(found.num_seen, 'slide')})"),)
    sets = deferral = ""
    if found.num_with_set:
        sets = f"hold the label of {found.num_covered} of {found.num_with_set} slides"
    if found.num_deferred is not None:
        wrong = found.wrong_kept + found.wrong_deferred
        deferral = f"{found.num_deferred} of {found.num_slides} slides, with "
        deferral += f"{found.wrong_deferred} of {wrong} errors"
    left_out = f" ({found.num_seen} seen left out)" if found.num_seen else ""
    lines = (("prediction sets", sets), ("to a human", deferral))
    return tuple((name, text + left_out) for name, text in lines if text)


def _patches(assessment: Assessment) -> str:
    means = {metric.name: metric.mean for metric in assessment.summary}
    areas = {kind: means.get(f"{kind}_auc", math.nan) for kind in CLASS_SCORES}
    known = [f"{kind} {area:.3f}" for kind, area in areas.items() if not math.isnan(area)]
    return ", ".join(known)
