"""Confidence of the model in a slide, in words, and the slide's prediction set."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sgpmil.bags.target import Target
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.novelty_warning import is_unlike, unlike_level
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.evaluation.uncertainty.calibration_slides import too_few_slides
from sgpmil.evaluation.uncertainty.conformal import ConformalPredictor, fit_conformal
from sgpmil.evaluation.uncertainty.decisions import SET_SEPARATOR
from sgpmil.evaluation.uncertainty.measures import slide_uncertainty
from sgpmil.runs.material import RunMaterial
from sgpmil.runs.prediction_folder import read_prediction_sets

ConfidenceLevel = Literal["sure", "leaning", "undecided"]

SURE = 0.9
"""Probability that a sure prediction keeps, two standard deviations down."""
LEAD = 0.2
"""Least lead over the next class of a prediction that is not undecided."""
SMALL_DOUBT = 0.25
"""Entropy, as a share of the largest possible, below which there is little doubt to explain."""
MODEL_SHARE = (0.1, 0.3)
"""Shares of the entropy that lie in the model: up to the first little, from the second much."""

_RARE = 0.05
"""Largest share of ordinary slides that may be called unlike those of training."""
_ROUNDING = 1e-9
"""0.95 − 2 · 0.025 is a little less than 0.9 in floating point; spreads of equal samples too."""


def has_posterior(material: RunMaterial) -> bool:
    """Check whether the predictions of a run have a posterior spread other than zero."""
    spreads = [slide_uncertainty(fold.test, "std") for fold in material.folds if len(fold.test)]
    values = np.concatenate(spreads) if spreads else np.zeros(0)
    return bool(len(values) and not np.isnan(values).any() and (values > _ROUNDING).any())


@dataclass(frozen=True, slots=True)
class SlideSet:
    """The prediction set of one slide.

    Args:
        names: Classes the slide may be of; None where no set can be given.
        was_empty: Whether no class was likely enough, so that the likeliest stands alone.
        sentence: Coverage and calibration of the set, or the reason that there is none.
    """

    names: tuple[str, ...] | None
    was_empty: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class ConfidenceWords:
    """Confidence of the model in a slide.

    Args:
        level: The level.
        headline: It in one sentence.
        reasons: Reasons for it, a sentence each.
        doubt: Source of the doubt: the slide or the model.
        disagreement: How far the models of an ensemble differ; empty for a single model.
    """

    level: ConfidenceLevel
    headline: str
    reasons: tuple[str, ...]
    doubt: str
    disagreement: str = ""


def unlike_training(fold: TestedFold, prediction: Prediction) -> str:
    """Say in what a slide is not like those of training; empty where nothing tells.

    Args:
        fold: The fold that predicted it.
        prediction: Its prediction.
    """
    origin = fold.test.provenance
    if origin is not None and origin.other_features:
        return f"Its embeddings are not like those of training: {origin.other_features}."
    is_rare = unlike_level(fold.novelty_slides) <= _RARE  # not from a handful of training slides
    if is_rare and is_unlike(prediction, fold.novelty_slides):
        return f"The slide is unlike the training slides (p = {prediction.novelty_p:.2g})."
    return ""


def confidence_words(
    prediction: Prediction,
    target: Target,
    prediction_set: SlideSet,
    *,
    has_posterior: bool,
    is_idle: bool = False,
    unlike: str = "",
) -> ConfidenceWords:
    r"""Describe the confidence of the model in a slide.

    With $p_1 \ge p_2$ the probabilities of the two likeliest classes and $s_1, s_2$ their
    posterior standard deviations (0 for a model without a posterior), the model is

    - **undecided** where the lead $p_1 - p_2$ is below 0.2, or below $2 (s_1 + s_2)$, twice the
      largest standard deviation that it can have; or where the prediction set holds several
      classes;
    - **sure** where it is not undecided, $p_1 - 2 s_1 \ge 0.9$, the set, where there is one,
      was not empty at first, and the slide is not unlike those of training;
    - **leaning** otherwise.

    Of the entropy $H$, the mutual information $I$ is the model's: what other weights, as
    plausible, would say differently. The rest is the data's. Their shares are not
    reported where $H < 0.25 \ln C$.

    Args:
        prediction: The model's prediction of the slide.
        target: Quantity that is predicted.
        prediction_set: The classes that it may be of.
        has_posterior: Whether the model has a posterior.
        is_idle: Whether that posterior is the prior, and separates no kinds of doubt.
        unlike: In what the slide is not like those of training (`unlike_training`).
    """
    doubt = _doubt(prediction, target.num_outputs, has_posterior and not is_idle)
    if unlike:
        doubt += " Of slides unlike those of training, a model often is too sure."
    disagreement = _disagreement(prediction, target.num_outputs)
    order = np.argsort(-prediction.probs, kind="stable")
    first = int(order[0])
    name = target.names[first]
    top = float(prediction.probs[first])
    second = float(prediction.probs[order[1]]) if len(order) > 1 else 0.0
    spread = [float(prediction.std[c]) if has_posterior else 0.0 for c in order[:2]]
    lead, wobble = top - second, 2 * sum(spread)
    several = prediction_set.names is not None and len(prediction_set.names) > 1
    reasons = []
    if lead < LEAD - _ROUNDING:
        reasons.append(f"{_quoted(target.names[order[1]])} is nearly as probable.")
    elif lead < wobble - _ROUNDING:
        reasons.append(
            f"Its lead over {_quoted(target.names[order[1]])} is within two standard deviations "
            "of the model's posterior."
        )
    if several:
        reasons.append("The prediction set holds more than one class.")
    if reasons:
        reasons += [unlike] if unlike else []
        headline = f"The model is undecided; {_quoted(name)} is only its likeliest class."
        return ConfidenceWords("undecided", headline, tuple(reasons), doubt, disagreement)
    low = top - 2 * spread[0] + _ROUNDING
    if low >= SURE and not prediction_set.was_empty and not unlike:
        if has_posterior and spread[0] > 0:
            reason = f"Its probability stays above {SURE} two standard deviations down."
        else:
            reason = f"Its probability is at least {SURE}."
        if prediction_set.names is not None:
            reason += " No other class is in the prediction set."
        headline = f"The model is sure of {_quoted(name)}."
        return ConfidenceWords("sure", headline, (reason,), doubt, disagreement)
    if prediction_set.was_empty:
        reasons.append("The slide is less clear to the model than nearly all validation slides.")
    if low < SURE:
        down = " two standard deviations down" if has_posterior and spread[0] > 0 else ""
        reasons.append(f"Its probability is ahead, but below {SURE}{down}.")
    if unlike:
        reasons.append(unlike)
    headline = f"The model is leaning towards {_quoted(name)}."
    return ConfidenceWords("leaning", headline, tuple(reasons), doubt, disagreement)


def _doubt(prediction: Prediction, num_outputs: int, has_posterior: bool) -> str:
    if not has_posterior or math.isnan(prediction.mutual_information):
        return (
            "This model does not tell how unsure it is of itself, so doubt about the slide and "
            "doubt about the model cannot be separated."
        )
    total = prediction.entropy
    if num_outputs < 2 or total < SMALL_DOUBT * math.log(num_outputs):
        return "There is little doubt of either kind: about what the slide shows or in the model."
    share = prediction.mutual_information / total
    part = f"{share:.0%} of the doubt is the model's own"
    if share < MODEL_SHARE[0]:
        return (
            f"Nearly all of the doubt lies in the slide ({part}): to the model, what it shows fits "
            "more than one class."
        )
    if share < MODEL_SHARE[1]:
        return (
            f"Most of the doubt lies in the slide, some in the model ({part}): equally plausible "
            "models would weigh its regions somewhat differently."
        )
    return (
        f"Much of the doubt lies in the model ({part}): equally plausible models would judge this "
        "slide differently, as happens with slides unlike those of the training."
    )


def _disagreement(prediction: Prediction, num_outputs: int) -> str:
    """Say how far the models of an ensemble differ; empty for a single model."""
    between, total = prediction.disagreement, prediction.entropy
    if math.isnan(between):
        return ""
    share = between / total if total > 0 else 0.0
    number = f"disagreement {abs(between):.3f} nats, {share:.0%} of the doubt"
    has_doubt = num_outputs > 1 and total >= SMALL_DOUBT * math.log(num_outputs)
    if not has_doubt or share < MODEL_SHARE[0]:
        return f"Several models predicted together, and they agree ({number})."
    if share < MODEL_SHARE[1]:
        return f"Several models predicted together, and they differ somewhat ({number})."
    return (
        f"Several models predicted together, and they disagree ({number}): the answer depends on "
        "which slides a model was trained on."
    )


def _quoted(name: str) -> str:
    return f"“{name}”"


def run_sets(material: RunMaterial, coverage: float) -> dict[str, tuple[SlideSet, ...]]:
    """Return the prediction sets of every fold's test slides.

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
    fold: TestedFold,
    coverage: float,
    stored: Mapping[str, tuple[str, ...] | None] | None = None,
) -> tuple[SlideSet, ...]:
    """Return the prediction set of each test slide of a fold.

    They are least ambiguous sets (LAC), calibrated on the fold's validation slides. There are
    none where these are fewer than `MIN_CALIBRATION_SLIDES` or than the coverage needs, or for a
    slide that is a validation slide itself or of a patient who has one.

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
        origin = fold.test.provenance
        return tuple(_stored(p.slide_id, stored, origin) for p in fold.test.predictions)
    few = too_few_slides(len(validation), "Prediction sets")
    if few:
        return tuple(SlideSet(None, False, few) for _ in fold.test.predictions)
    predictor = fit_conformal(validation, coverage)
    if not np.isfinite(predictor.thresholds).all():
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        why = (
            f"No prediction set can be given: a coverage of {coverage:.0%} needs at least "
            f"{needed} validation slides to calibrate on, but there are {len(validation)}."
        )
        return tuple(SlideSet(None, False, why) for _ in fold.test.predictions)
    return _calibrated(fold.test, predictor, validation)


def _stored(
    slide_id: str,
    stored: Mapping[str, tuple[str, ...] | None] | None,
    origin: PredictionProvenance | None,
) -> SlideSet:
    """Return the set that was written with a prediction, or say why there is none."""
    if stored is None:
        why = "there are no labelled validation slides to calibrate it on."
        return SlideSet(None, False, f"No prediction set can be given: {why}")
    if slide_id not in stored:
        why = (
            "No prediction set: the prediction was written without one. Predict again with sgpmil "
            "predict --coverage 0.9 to have it; several folds together need --calibration as well."
        )
        return SlideSet(None, False, why)
    names = stored[slide_id]
    if names is None:
        why = (
            "No prediction set can be given: the names of the classes in the one that was written "
            f"with the prediction cannot be separated, as they hold “{SET_SEPARATOR}”."
        )
        return SlideSet(None, False, why)
    written = "The set was written with the prediction (sgpmil predict --coverage)"
    if origin is None or origin.coverage is None or origin.num_calibration is None:
        return SlideSet(names, False, f"{written}, to the coverage that was asked for there.")
    few = too_few_slides(origin.num_calibration, "Prediction sets", "calibration")
    if few:
        return SlideSet(None, False, few)
    return SlideSet(
        names,
        False,
        f"{written}, to hold the true class of about {origin.coverage:.0%} of slides like the "
        f"{origin.num_calibration:,} that it was calibrated on.",
    )


def _calibrated(
    test: PredictionTable, predictor: ConformalPredictor, validation: PredictionTable
) -> tuple[SlideSet, ...]:
    found = predictor.sets(test)
    known = {p.slide_id for p in validation.predictions}
    known |= {p.case_id for p in validation.predictions if p.case_id}
    num = len(validation)
    promise = (
        f"Sets made so hold the true class of about {predictor.coverage:.0%} of slides like the "
        f"{num:,} validation {'slide' if num == 1 else 'slides'} of this fold, which they were "
        "calibrated on; for slides of another kind (scanner, stain, hospital) nothing is promised."
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
