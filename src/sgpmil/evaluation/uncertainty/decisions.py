"""Decisions on slides: the set of possible classes, and the deferral to a human."""

import math
from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class DecisionMetrics:
    """How decisions turned out, on slides that neither trained nor calibrated anything.

    Args:
        num_slides: Number of these slides that have a label and a decision.
        num_seen: Number of other slides with a label and a decision, which are left out.
        num_with_set: Number of slides with a prediction set.
        num_covered: Number of them whose set holds the label.
        num_deferred: Number of slides that went to a human; None where that was not decided.
        wrong_kept: Number of wrong predictions among the others.
        wrong_deferred: Number of wrong predictions among those that went to a human.
    """

    num_slides: int
    num_seen: int
    num_with_set: int
    num_covered: int
    num_deferred: int | None
    wrong_kept: int
    wrong_deferred: int


def measure_decisions(
    table: PredictionTable, decisions: Mapping[str, Decision]
) -> DecisionMetrics | None:
    """Measure decisions on the labelled slides that were seen in no part; None without decisions.

    Args:
        table: Predictions.
        decisions: Decision on each slide, by its name.
    """
    decided = [p for p in table.labelled().predictions if p.slide_id in decisions]
    if not decided:
        return None
    new = [p for p in decided if not p.seen]
    sets = [(p, decisions[p.slide_id].prediction_set) for p in new]
    covered = [
        table.target.decode(p.label) in names
        for p, names in sets
        if names is not None and p.label is not None
    ]
    wrong = {p.slide_id: p.predicted_class != p.label for p in new}
    deferred = {p.slide_id for p in new if decisions[p.slide_id].deferred}
    defers = any(decisions[p.slide_id].deferred is not None for p in decided)
    return DecisionMetrics(
        num_slides=len(new),
        num_seen=len(decided) - len(new),
        num_with_set=len(covered),
        num_covered=sum(covered),
        num_deferred=len(deferred) if defers else None,
        wrong_kept=sum(is_wrong for slide, is_wrong in wrong.items() if slide not in deferred),
        wrong_deferred=sum(wrong[slide] for slide in deferred),
    )
