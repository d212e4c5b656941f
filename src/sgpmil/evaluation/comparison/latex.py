r"""A comparison as LaTeX, in the layout of the paper's tables: $.964^{\star}_{.010}$."""

import math
from collections.abc import Sequence

from sgpmil.evaluation.comparison.cells import (
    DASH,
    TableCell,
    delong_rows,
    fixed,
    row_order,
    table_cell,
)
from sgpmil.evaluation.comparison.result import Comparison
from sgpmil.evaluation.metrics import get_metric

__all__ = ["comparison_latex", "latex_text"]

_ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    DASH: "--",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def comparison_latex(comparison: Comparison) -> str:
    r"""Write tables that need ``\usepackage{booktabs}`` and no other package.

    Args:
        comparison: What to write.
    """
    metrics = [get_metric(metric) for metric in comparison.metrics]
    reference = latex_text(comparison.reference)
    parts = [r"% Needs \usepackage{booktabs}.", *(f"% {note}" for note in comparison.notes)]
    arrows = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "neither": ""}
    rows = [
        [
            rf"\textbf{{{reference}}}" if run == comparison.reference else latex_text(run),
            *(_cell(table_cell(comparison, run, metric)) for metric in comparison.metrics),
        ]
        for run in row_order(comparison)
    ]
    heads = [f"{latex_text(metric.short_name)}{arrows[metric.better]}" for metric in metrics]
    parts.append(_table(["", *heads], rows, _caption(comparison), "tab:comparison"))
    if comparison.tests:
        rows = [
            [latex_text(run), *(_p_of(comparison, run, metric) for metric in comparison.metrics)]
            for run in comparison.runs[1:]
        ]
        caption = (
            f"$p$-values of whether {reference} is better: {latex_text(comparison.marking)}. "
            f"Bold: $p < {comparison.alpha:g}$."
        )
        heads = [f"{latex_text(metric.short_name)} ($p$)" for metric in metrics]
        parts.append(_table(["", *heads], rows, caption, "tab:comparison_pvalues"))
    if comparison.auc_tests:
        header, cells = delong_rows(comparison)
        caption = (
            f"DeLong's one-sided test of whether {reference} has the larger AUC, of the folds' "
            "mean probabilities on the test slides that they share."
        )
        escaped = [[latex_text(cell) for cell in row] for row in (header, *cells)]
        parts.append(_table(escaped[0], escaped[1:], caption, "tab:comparison_delong"))
    return "\n".join(parts) + "\n"


def latex_text(text: str) -> str:
    r"""Escape what LaTeX would take for commands.

    Example:
        >>> print(latex_text("sgpmil_v2 & 50%"))
        sgpmil\_v2 \& 50\%
    """
    return "".join(_ESCAPED.get(character, character) for character in " ".join(text.split()))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str) -> str:
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\begin{{tabular}}{{l{'c' * (len(header) - 1)}}}",
        r"\toprule",
        " & ".join(header) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{caption}}}",
        rf"\label{{{label}}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _caption(comparison: Comparison) -> str:
    num = len(comparison.folds)
    values = f"Mean over {num} folds, standard deviation as subscript" if num > 1 else "One fold"
    ranks = "Bold: best; underlined: second." if len(comparison.runs) > 2 else "Bold: best."
    star = (
        rf" ${{}}^\star$: {latex_text(comparison.reference)} is better, $p < {comparison.alpha:g}$ "
        f"({latex_text(comparison.marking)})."
        if comparison.tests
        else ""
    )
    return f"{values}. {ranks}{star}"


def _cell(cell: TableCell) -> str:
    mean = _short(cell.mean)
    if not mean:
        return "--"
    if cell.is_best:
        mean = rf"\mathbf{{{mean}}}"
    elif cell.is_second:
        mean = rf"\underline{{{mean}}}"
    sd = _short(cell.sd)
    star = r"^{\star}" if cell.is_marked else ""
    return f"${mean}{star}{f'_{{{sd}}}' if sd else ''}$"


def _short(value: float) -> str:
    """Print .964 for 0.964, as the paper does; nothing where undefined."""
    text = fixed(value)
    return "" if text == DASH else text.replace("0.", ".", 1) if abs(value) < 1 else text


def _p_of(comparison: Comparison, run: str, metric: str) -> str:
    test = comparison.test(run, metric)
    if test is None or math.isnan(test.marking_holm):
        return "--"
    digits, exponent = f"{test.marking_holm:.2e}".split("e")
    power = f"{{{int(exponent)}}}"
    if comparison.is_marked(run, metric):
        return rf"$\mathbf{{{digits}e{power}}}$"
    return rf"${digits}\mathrm{{e}}{power}$"
