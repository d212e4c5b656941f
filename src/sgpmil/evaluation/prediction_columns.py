"""Columns of a table of predictions, as files and data frames have them."""

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from sgpmil.errors import PredictionError

if TYPE_CHECKING:
    from sgpmil.evaluation.prediction_table import PredictionTable
    from sgpmil.evaluation.uncertainty.decisions import Decision

MEASURES = ("entropy", "expected_entropy", "mutual_information")
NOVELTY = ("novel_share", "novelty_p")
"""Columns of tables whose model can tell novelty."""
ENSEMBLE = ("disagreement",)
"""Column of tables of several models."""
_SEEN = "seen"


def output_columns(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the columns of the probabilities and of their standard deviations.

    Args:
        names: Name, or number, of each class.

    Example:
        >>> output_columns(["normal", "tumour"])
        (('p_normal', 'p_tumour'), ('std_normal', 'std_tumour'))
    """
    return tuple(f"p_{name}" for name in names), tuple(f"std_{name}" for name in names)


def optional_columns(table: "PredictionTable") -> frozenset[str]:
    """Return the columns of a table that others may lack: novelty, disagreement and seen."""
    return frozenset((*measure_columns(table), *text_columns(table))) - {*MEASURES}


def prediction_columns(
    table: "PredictionTable",
    decisions: Sequence["Decision"] = (),
    also: Collection[str] = (),
) -> dict[str, list[Any]]:
    """Return the values of each column by its name, with classes by their names.

    The columns are ``slide_id``, ``case_id``, ``label`` (None where unknown), ``predicted``,
    ``p_<class>`` and ``std_<class>`` of each class, and those of `measure_columns` and
    `text_columns`.

    Args:
        table: Predictions.
        decisions: Decisions on these slides, in their order.
        also: Columns that there are even where all of their values are unknown.

    Raises:
        PredictionError: The decisions are on other slides.
    """
    rows, target = table.predictions, table.target
    probs, stds = output_columns(target.names)
    return {
        "slide_id": [p.slide_id for p in rows],
        "case_id": [p.case_id for p in rows],
        "label": [None if p.label is None else target.decode(p.label) for p in rows],
        "predicted": [target.decode(label) for label in table.predicted.tolist()],
        **dict(zip(probs, table.probs.T.tolist(), strict=True)),
        **dict(zip(stds, table.std.T.tolist(), strict=True)),
        **measure_columns(table, also),
        **text_columns(table, decisions, also),
    }


def measure_columns(table: "PredictionTable", also: Collection[str] = ()) -> dict[str, list[float]]:
    """Return the measures of uncertainty and, where a slide has them, novelty and disagreement."""

    def known(names: tuple[str, ...]) -> tuple[str, ...]:
        has_any = names[-1] in also or any(
            not math.isnan(getattr(p, names[-1])) for p in table.predictions
        )
        return names if has_any else ()

    names = (*MEASURES, *known(NOVELTY), *known(ENSEMBLE))
    return {name: [float(getattr(p, name)) for p in table.predictions] for name in names}


def text_columns(
    table: "PredictionTable",
    decisions: Sequence["Decision"] = (),
    also: Collection[str] = (),
) -> dict[str, list[str]]:
    """Return the decisions, and the part in which the model has seen each slide, where any has.

    Raises:
        PredictionError: The decisions are on other slides.
    """
    columns: dict[str, list[str]] = {}
    if decisions:
        if tuple(decision.slide_id for decision in decisions) != table.slide_ids:
            raise PredictionError(
                "Expected decisions on the slides of the predictions, in their order, but got "
                "others. Decide on these predictions."
            )
        for name in decisions[0].columns:
            columns[name] = [decision.columns[name] for decision in decisions]
    if _SEEN in also or any(p.seen for p in table.predictions):
        columns[_SEEN] = [p.seen for p in table.predictions]
    return columns
