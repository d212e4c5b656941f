"""Decisions on slides: the set of possible classes, and the deferral to a human."""

from dataclasses import dataclass

from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import ConformalPredictor
from sgpmil.evaluation.uncertainty.deferral import DeferralRule

__all__ = ["SET_SEPARATOR", "Decision", "decide"]

SET_SEPARATOR = "|"
"""Mark between the names of a prediction set on disk."""


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

    Args:
        table: Predictions.
        conformal: Rule of the prediction sets.
        deferral: Rule of the deferral to a human.

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
