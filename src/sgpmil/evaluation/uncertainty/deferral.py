"""Which slides to send to a human: those less certain than a threshold of validation slides."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.measures import (
    UncertaintyMeasure,
    slide_uncertainty,
    uncertainty,
    uncertainty_measure,
)
from sgpmil.shapes import Bool

__all__ = ["DeferralRule", "fit_deferral"]


@dataclass(frozen=True, slots=True)
class DeferralRule:
    """A threshold of uncertainty, above which a slide goes to a human.

    Args:
        measure: Which uncertainty.
        threshold: Largest uncertainty of a slide that is kept.
        asked_share: Share of the slides that was to be deferred.
        expected_share: Share of new slides expected to be: the least that the number of
            validation slides allows, of at least the share asked for.
        num_slides: Number of validation slides.
    """

    measure: UncertaintyMeasure
    threshold: float
    asked_share: float
    expected_share: float
    num_slides: int

    def defers(self, table: PredictionTable) -> Bool[np.ndarray, " n"]:
        """Say of each slide whether it goes to a human; one of unknown uncertainty does.

        Args:
            table: Predictions of the model whose validation slides gave the threshold.
        """
        return np.asarray(~(slide_uncertainty(table, self.measure) <= self.threshold))


def fit_deferral(
    table: PredictionTable, share: float, measure: UncertaintyMeasure = "entropy"
) -> DeferralRule:
    r"""Find the uncertainty above which a share of slides like the validation slides lies.

    The threshold is the k-th smallest of the n uncertainties, $k = \lfloor (n + 1)(1 - s)
    \rfloor$. A new slide, exchangeable with them, lies above it with the chance
    $1 - k / (n + 1)$, between $s$ and $s + 1 / (n + 1)$ (less where uncertainties are equal,
    for a slide at the threshold is kept). Labels are not needed. A threshold, unlike a share of
    the slides at hand, decides a single new slide.

    Args:
        table: Predictions of validation slides.
        share: Share s of the slides to defer.
        measure: Which uncertainty.

    Raises:
        PredictionError: There are no slides, they lack the measure, or the share is not between
            0 and 1.
    """
    measure = uncertainty_measure(measure)
    if not 0 < share < 1:
        raise PredictionError(
            f"Expected a share of slides to defer between 0 and 1, but got {share}. "
            "Pass a share such as 0.1."
        )
    values = uncertainty(table, measure)
    if not len(values):
        raise PredictionError(
            "Expected validation slides to find the threshold of deferral, but got none. "
            "Predict at least one."
        )
    if np.isnan(values).any():
        raise PredictionError(
            f"Expected validation slides with the measure '{measure}', but "
            f"{int(np.isnan(values).sum())} of {len(values)} lack it. Defer by entropy."
        )
    num_slides = len(values)
    rank = math.floor((num_slides + 1) * (1 - share) + 1e-9)
    return DeferralRule(
        measure=measure,
        threshold=float(np.sort(values)[rank - 1]) if rank > 0 else -math.inf,
        asked_share=share,
        expected_share=1 - rank / (num_slides + 1),
        num_slides=num_slides,
    )
