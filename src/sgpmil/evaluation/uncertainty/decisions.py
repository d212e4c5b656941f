"""Decisions on slides: the set of possible classes, and the deferral to a human."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import ConformalPredictor
from sgpmil.evaluation.uncertainty.measures import (
    UncertaintyMeasure,
    slide_uncertainty,
    uncertainty,
    uncertainty_measure,
)
from sgpmil.shapes import Bool

SET_SEPARATOR = "|"
"""Mark between the names of a prediction set on disk."""


@dataclass(frozen=True, slots=True)
class DeferralRule:
    """A threshold of uncertainty, above which a slide goes to a human.

    Args:
        measure: Measure of uncertainty.
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
        """Mark the slides that go to a human, those of unknown uncertainty among them.

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
    given slides, decides a single new slide.

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


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one slide.

    Args:
        slide_id: Name of the slide.
        prediction_set: Classes the slide may be of; None where no sets were asked for.
        deferred: Whether it goes to a human; None where that was not asked for.
    """

    slide_id: str
    prediction_set: tuple[str, ...] | None = None
    deferred: bool | None = None

    @property
    def columns(self) -> dict[str, str]:
        """The decision as columns of a table, without what was not asked for."""
        columns = {}
        if self.prediction_set is not None:
            columns["prediction_set"] = SET_SEPARATOR.join(self.prediction_set)
        if self.deferred is not None:
            columns["defer"] = "yes" if self.deferred else "no"
        return columns


def decide(
    table: PredictionTable,
    conformal: ConformalPredictor | None = None,
    deferral: DeferralRule | None = None,
) -> tuple[Decision, ...]:
    """Decide on every slide.

    Raises:
        PredictionError: The classes are not those of the calibration slides.
    """
    num_slides = len(table)
    sets = [None] * num_slides if conformal is None else conformal.sets(table).names()
    deferred = [None] * num_slides if deferral is None else deferral.defers(table).tolist()
    return tuple(
        Decision(slide_id, names, defers)
        for slide_id, names, defers in zip(table.slide_ids, sets, deferred, strict=True)
    )
