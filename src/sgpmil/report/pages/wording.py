"""How sure the model is, in words: a rule that is written down."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sgpmil.evaluation.prediction import Prediction
from sgpmil.report.pages.prediction_sets import SlideSet

__all__ = [
    "LEAD",
    "MODEL_SHARE",
    "SMALL_DOUBT",
    "SURE",
    "ConfidenceLevel",
    "ConfidenceWords",
    "confidence_words",
]

ConfidenceLevel = Literal["sure", "leaning", "undecided"]

SURE = 0.9
"""Probability that a sure prediction keeps, two standard deviations down."""
LEAD = 0.2
"""Least lead over the next class of a prediction that is not undecided."""
SMALL_DOUBT = 0.25
"""Entropy, as a share of the largest possible, below which there is little doubt to explain."""
MODEL_SHARE = (0.1, 0.3)
"""Shares of the entropy that lie in the model: up to the first little, from the second much."""

_ROUNDING = 1e-9
"""0.95 − 2 · 0.025 is a little less than 0.9 in floating point."""


@dataclass(frozen=True, slots=True)
class ConfidenceWords:
    """How sure the model is.

    Args:
        level: The level.
        headline: It in one sentence.
        reasons: What it follows from, a sentence each.
        doubt: Where the doubt lies: in what the slide shows, or in the model.
    """

    level: ConfidenceLevel
    headline: str
    reasons: tuple[str, ...]
    doubt: str


def confidence_words(
    prediction: Prediction,
    class_names: tuple[str, ...],
    prediction_set: SlideSet,
    *,
    has_posterior: bool,
) -> ConfidenceWords:
    r"""Say how sure the model is of a slide.

    With $p_1 \ge p_2$ the probabilities of the two likeliest classes and $s_1, s_2$ their
    posterior standard deviations (0 for a model without a posterior), the model is

    - **undecided** where the lead $p_1 - p_2$ is below 0.2, or below $2 (s_1 + s_2)$, twice the
      largest standard deviation that it can have; or where the prediction set holds several
      classes;
    - **sure** where it is not undecided, $p_1 - 2 s_1 \ge 0.9$, and the set, where there is one,
      was not empty at first;
    - **leaning** otherwise.

    Of the entropy $H$, the mutual information $I$ is the model's: what other weights, as
    plausible, would say differently. The rest is the data's. Nothing is said of their shares
    where $H < 0.25 \ln C$.

    Args:
        prediction: What the model says of the slide.
        class_names: Name of each class.
        prediction_set: The classes that it may be of.
        has_posterior: Whether the model says how unsure it is of itself.
    """
    order = np.argsort(-prediction.probs, kind="stable")
    first = int(order[0])
    name = class_names[first]
    top = float(prediction.probs[first])
    second = float(prediction.probs[order[1]]) if len(order) > 1 else 0.0
    spread = [float(prediction.std[c]) if has_posterior else 0.0 for c in order[:2]]
    lead, wobble = top - second, 2 * sum(spread)
    several = prediction_set.names is not None and len(prediction_set.names) > 1
    reasons = []
    if lead < LEAD - _ROUNDING:
        reasons.append(f"{_quoted(class_names[order[1]])} is nearly as probable.")
    elif lead < wobble - _ROUNDING:
        reasons.append(
            f"Its lead over {_quoted(class_names[order[1]])} is within two standard deviations "
            "of the model's posterior."
        )
    if several:
        reasons.append("The prediction set holds more than one class.")
    if reasons:
        headline = f"The model is undecided; {_quoted(name)} is only its likeliest class."
        return _words("undecided", headline, reasons, prediction, class_names, has_posterior)
    low = top - 2 * spread[0] + _ROUNDING
    if low >= SURE and not prediction_set.was_empty:
        if has_posterior and spread[0] > 0:
            reason = f"Its probability stays above {SURE} two standard deviations down."
        else:
            reason = f"Its probability is at least {SURE}."
        if prediction_set.names is not None:
            reason += " No other class is in the prediction set."
        headline = f"The model is sure of {_quoted(name)}."
        return _words("sure", headline, [reason], prediction, class_names, has_posterior)
    if prediction_set.was_empty:
        reasons.append("The slide is less clear to the model than nearly all validation slides.")
    if low < SURE:
        down = " two standard deviations down" if has_posterior and spread[0] > 0 else ""
        reasons.append(f"Its probability is ahead, but below {SURE}{down}.")
    headline = f"The model is leaning towards {_quoted(name)}."
    return _words("leaning", headline, reasons, prediction, class_names, has_posterior)


def _words(
    level: ConfidenceLevel,
    headline: str,
    reasons: list[str],
    prediction: Prediction,
    class_names: tuple[str, ...],
    has_posterior: bool,
) -> ConfidenceWords:
    doubt = _doubt(prediction, len(class_names), has_posterior)
    return ConfidenceWords(level, headline, tuple(reasons), doubt)


def _doubt(prediction: Prediction, num_classes: int, has_posterior: bool) -> str:
    if not has_posterior or math.isnan(prediction.mutual_information):
        return (
            "This model does not say how unsure it is of itself, so doubt about the slide and "
            "doubt about the model cannot be told apart."
        )
    total = prediction.entropy
    if num_classes < 2 or total < SMALL_DOUBT * math.log(num_classes):
        return "There is little doubt of either kind: about what the slide shows or in the model."
    share = prediction.mutual_information / total
    told = f"{share:.0%} of the doubt is the model's own"
    if share < MODEL_SHARE[0]:
        return (
            f"Nearly all of the doubt lies in the slide ({told}): to the model, what it shows fits "
            "more than one class."
        )
    if share < MODEL_SHARE[1]:
        return (
            f"Most of the doubt lies in the slide, some in the model ({told}): equally plausible "
            "models would weigh its regions somewhat differently."
        )
    return (
        f"Much of the doubt lies in the model ({told}): equally plausible models would judge this "
        "slide differently, as happens with slides unlike those it learned from."
    )


def _quoted(name: str) -> str:
    return f"“{name}”"
