"""A comparison as Markdown, to read."""

import re
from collections.abc import Sequence

from sgpmil.evaluation.comparison.cells import (
    DASH,
    TableCell,
    delong_rows,
    fixed,
    p_value_rows,
    row_order,
    table_cell,
)
from sgpmil.evaluation.comparison.result import Comparison
from sgpmil.evaluation.metrics import get_metric

__all__ = ["comparison_markdown"]

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def comparison_markdown(comparison: Comparison) -> str:
    """Write the means, the tests across folds, DeLong's tests and the notes.

    Args:
        comparison: What to write.
    """
    reference = _text(comparison.reference)
    metrics = [get_metric(metric) for metric in comparison.metrics]
    rows = [
        [
            f"**{reference}**" if run == comparison.reference else _text(run),
            *(_cell(table_cell(comparison, run, metric)) for metric in comparison.metrics),
        ]
        for run in row_order(comparison)
    ]
    heads = [f"{metric.short_name} {metric.arrow}".strip() for metric in metrics]
    parts = [f"# Comparison with {reference}", _table(["run", *heads], rows), _legend(comparison)]
    if comparison.tests:
        header, tests = p_value_rows(comparison)
        parts += ["## Tests across folds", _escaped_table(header, tests), _test_legend(comparison)]
    if comparison.auc_tests:
        header, tests = delong_rows(comparison)
        parts += [
            "## DeLong's test of the AUC",
            _escaped_table(header, tests),
            f"One-sided: whether {reference} has the larger area, of the folds' mean "
            "probabilities on the test slides that they share.",
        ]
    if comparison.notes:
        parts += ["## Notes", "\n".join(f"- {_text(note)}" for note in comparison.notes)]
    return "\n\n".join(parts) + "\n"


def _legend(comparison: Comparison) -> str:
    num = len(comparison.folds)
    values = f"Mean ± standard deviation over {num} folds" if num > 1 else "One fold"
    ranks = "Bold: best; underlined: second." if len(comparison.runs) > 2 else "Bold: best."
    star = (
        f" ★: {_text(comparison.reference)} is better, p < {comparison.alpha:g} "
        f"({comparison.marking})."
        if comparison.tests
        else ""
    )
    return f"{values}. {ranks}{star}"


def _test_legend(comparison: Comparison) -> str:
    adjusted = (
        f"; in parentheses, adjusted for {len(comparison.runs) - 1} comparisons a metric (Holm)"
        if len(comparison.runs) > 2
        else ""
    )
    return f"P-values are one-sided: whether {_text(comparison.reference)} is better{adjusted}."


def _cell(cell: TableCell) -> str:
    mean = fixed(cell.mean)
    if mean == DASH:
        return mean
    if cell.is_best:
        mean = f"**{mean}**"
    elif cell.is_second:
        mean = f"<u>{mean}</u>"
    sd = fixed(cell.sd)
    spread = "" if sd == DASH else f" ± {sd}"
    return mean + spread + (" ★" if cell.is_marked else "")


def _escaped_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return _table(header, [[_text(cell) for cell in row] for row in rows])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
