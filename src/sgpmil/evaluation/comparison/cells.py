"""What the tables of a comparison show, whatever they are written in.

As in the paper, a row is a run, a column a metric, the reference stands last, the best mean is
bold and the second underlined. Means that print alike share their place.
"""

import math
from dataclasses import dataclass

from sgpmil.evaluation.comparison.result import Comparison
from sgpmil.evaluation.comparison.significance import PairedTest
from sgpmil.evaluation.metrics import get_metric

__all__ = [
    "DASH",
    "TableCell",
    "delong_rows",
    "fixed",
    "p_value",
    "p_value_rows",
    "row_order",
    "table_cell",
]

DASH = "–"
"""What stands for a number that is not defined."""

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class TableCell:
    """What a table shows of a run's metric.

    Args:
        mean: Mean over folds; NaN where undefined.
        sd: Sample standard deviation over folds; NaN where undefined.
        is_best: Whether no other mean is better.
        is_second: Whether only the best are better, among three runs or more.
        is_marked: Whether the reference is significantly better.
    """

    mean: float
    sd: float
    is_best: bool
    is_second: bool
    is_marked: bool


def row_order(comparison: Comparison) -> tuple[str, ...]:
    """Give the runs as rows: in the order given, the reference last."""
    return (*comparison.runs[1:], comparison.reference)


def table_cell(comparison: Comparison, run: str, metric: str) -> TableCell:
    """Give what a table shows of a run's metric."""
    printed = {name: fixed(comparison.summary(name, metric).mean) for name in comparison.runs}
    values = {float(text) for text in printed.values() if text != DASH}
    better = get_metric(metric).better
    ranked = sorted(values, reverse=better == "higher") if better != "neither" else []
    best, second = (*ranked, None, None)[:2]
    own = None if printed[run] == DASH else float(printed[run])
    summary = comparison.summary(run, metric)
    return TableCell(
        mean=summary.mean,
        sd=summary.sd,
        is_best=own is not None and own == best,
        is_second=own is not None and own == second and len(comparison.runs) > 2,
        is_marked=comparison.is_marked(run, metric),
    )


def fixed(value: float, *, sign: str = "") -> str:
    """Print a number with three decimals, a dash where it is undefined.

    Example:
        >>> fixed(0.98), fixed(float("nan")), fixed(0.1, sign="+")
        ('0.980', '–', '+0.100')
    """
    return DASH if math.isnan(value) else f"{value:{sign}.{_DIGITS}f}"


def p_value(p: float) -> str:
    """Print a p-value with two digits that count, a dash where it is undefined.

    Example:
        >>> p_value(0.0123), p_value(0.00001234), p_value(1.0)
        ('0.012', '1.2e-05', '1')
    """
    return DASH if math.isnan(p) else f"{p:.2g}"


def p_value_rows(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Give header and rows of the tests across folds, p-values adjusted in parentheses."""
    header: tuple[str, ...] = (
        "metric",
        "run",
        "reference − run",
        "paired t",
        "corrected t",
        "Wilcoxon",
    )
    adjusted = len(comparison.runs) > 2

    def told(test: PairedTest | None, holm: float) -> str:
        if test is None or math.isnan(test.p_value):
            return DASH
        return p_value(test.p_value) + (f" ({p_value(holm)})" if adjusted else "")

    rows: list[tuple[str, ...]] = [
        (
            get_metric(test.metric).name,
            test.run,
            fixed(test.paired.difference, sign="+"),
            told(test.paired, test.paired_holm),
            told(test.corrected, test.corrected_holm),
            told(test.wilcoxon, test.wilcoxon_holm),
        )
        for test in comparison.tests
    ]
    return header, rows


def delong_rows(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Give header and rows of DeLong's tests."""
    header: tuple[str, ...] = (
        "run",
        "class",
        "AUC of the reference",
        "AUC of the run",
        "p",
        "p (Holm)",
    )
    rows: list[tuple[str, ...]] = [
        (
            found.run,
            found.class_name,
            fixed(found.test.auc_a),
            fixed(found.test.auc_b),
            p_value(found.test.p_value),
            p_value(found.p_holm),
        )
        for found in comparison.auc_tests
    ]
    return header, rows
