"""The classes a slide may be of, with the promise that goes with them, in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import ConformalPredictor, fit_conformal
from sgpmil.evaluation.uncertainty.decisions import SET_SEPARATOR
from sgpmil.report.pages.number_texts import counted
from sgpmil.runs.material import MaterialFold, RunMaterial
from sgpmil.runs.prediction_folder import read_prediction_sets

__all__ = ["SlideSet", "run_sets", "slide_sets"]


@dataclass(frozen=True, slots=True)
class SlideSet:
    """The prediction set of one slide.

    Args:
        names: Classes the slide may be of; None where no set can be given.
        was_empty: Whether no class was likely enough, so that the likeliest stands alone.
        sentence: What is promised and what it rests on, or why there is no set.
    """

    names: tuple[str, ...] | None
    was_empty: bool
    sentence: str


def run_sets(material: RunMaterial, coverage: float) -> dict[str, tuple[SlideSet, ...]]:
    """Give the prediction sets of every fold's test slides.

    Args:
        material: The run.
        coverage: Promised share of slides whose set holds their label.

    Raises:
        PredictionError: The classes of the validation slides are others.
    """
    stored = read_prediction_sets(material.path, material.target)
    known = None if material.run is not None and not stored else stored
    return {fold.name: slide_sets(fold, coverage, known) for fold in material.folds}


def slide_sets(
    fold: MaterialFold,
    coverage: float,
    stored: Mapping[str, tuple[str, ...] | None] | None = None,
) -> tuple[SlideSet, ...]:
    """Give the prediction set of each test slide of a fold.

    They are least ambiguous sets (LAC), calibrated on the fold's validation slides. There are
    none without labelled validation slides, where these are fewer than the coverage needs, or
    for a slide that is a validation slide itself or of a patient who has one.

    Args:
        fold: The fold.
        coverage: Promised share of slides whose set holds their label.
        stored: Sets that were written with the predictions (see `read_prediction_sets`), for a fold
            without validation slides; None where they are not of ``sgpmil predict``, but of
            a run's own fold.

    Raises:
        PredictionError: The classes of the validation slides are others.
    """
    validation = None if fold.validation is None else fold.validation.labelled()
    if validation is None or not len(validation):
        return tuple(_stored(p.slide_id, stored) for p in fold.test.predictions)
    predictor = fit_conformal(validation, coverage)
    if not np.isfinite(predictor.thresholds).all():
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        why = (
            f"No prediction set can be given: a coverage of {coverage:.0%} needs at least "
            f"{needed} validation slides to calibrate on, but there are {len(validation)}."
        )
        return tuple(SlideSet(None, False, why) for _ in fold.test.predictions)
    return _calibrated(fold.test, predictor, validation)


def _stored(slide_id: str, stored: Mapping[str, tuple[str, ...] | None] | None) -> SlideSet:
    """Give the set that was written with a prediction, or say why there is none."""
    if stored is None:
        why = "there are no labelled validation slides to calibrate it on."
        return SlideSet(None, False, f"No prediction set can be given: {why}")
    if slide_id not in stored:
        why = (
            "No prediction set: the prediction was written without one. Predict again with "
            "sgpmil predict --coverage 0.9 to have it."
        )
        return SlideSet(None, False, why)
    names = stored[slide_id]
    if names is None:
        why = (
            "No prediction set can be given: the names of the classes in the one that was written "
            f"with the prediction cannot be told apart, as they hold “{SET_SEPARATOR}”."
        )
        return SlideSet(None, False, why)
    told = (
        "The set was written with the prediction (sgpmil predict --coverage), to the coverage "
        "that was asked for there."
    )
    return SlideSet(names, False, told)


def _calibrated(
    test: PredictionTable, predictor: ConformalPredictor, validation: PredictionTable
) -> tuple[SlideSet, ...]:
    found = predictor.sets(test)
    known = {p.slide_id for p in validation.predictions}
    known |= {p.case_id for p in validation.predictions if p.case_id}
    promise = (
        f"Sets made so hold the true class of about {predictor.coverage:.0%} of slides like the "
        f"{counted(len(validation), 'validation slide')} of this fold, which they were calibrated "
        "on; for slides of another kind (scanner, stain, hospital) nothing is promised."
    )
    sets = []
    for prediction, names, empty in zip(
        test.predictions, found.names(), found.was_empty.tolist(), strict=True
    ):
        if prediction.slide_id in known or prediction.case_id in known:
            why = (
                "No prediction set can be given: this slide, or another of the patient, is among "
                "the validation slides that it would be calibrated on."
            )
            sets.append(SlideSet(None, False, why))
        elif empty:
            odd = (
                "No class was likely enough for the set, so the likeliest stands alone: the slide "
                "is less clear to the model than nearly all validation slides. "
            )
            sets.append(SlideSet(names, True, odd + promise))
        else:
            sets.append(SlideSet(names, False, promise))
    return tuple(sets)
