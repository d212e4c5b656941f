"""Tables of a comparison: Markdown to read, LaTeX to publish, CSV to compute with.

As in the paper, a row is a run, a column a metric, the reference stands last, the best mean is
bold and the second underlined. Means that print alike share their place.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.files import write_text
from sgpmil.bags.tables import sheet_text
from sgpmil.evaluation.comparison.result import Comparison, RunTest
from sgpmil.evaluation.comparison.significance import PairedTest
from sgpmil.evaluation.metrics import get_metric

DASH = "–"
"""Text of a number that is not defined."""

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class TableCell:
    """A run's metric as a table shows it.

    Args:
        mean: Mean over folds; NaN where undefined.
        sd: Sample standard deviation over folds; NaN where undefined.
        is_best: Whether no other mean is better.
        is_second: Whether only the best are better, among three runs or more.
        is_marked: Whether the reference is significantly better.
        is_behind: Whether the reference is significantly worse.
    """

    mean: float
    sd: float
    is_best: bool
    is_second: bool
    is_marked: bool
    is_behind: bool

    @property
    def mark(self) -> str:
        """Mark of the cell in text: ★ where the reference is better, ☆ where it is worse."""
        return " ★" if self.is_marked else " ☆" if self.is_behind else ""


def row_order(comparison: Comparison) -> tuple[str, ...]:
    """List the runs as rows: in the order given, the reference last."""
    return (*comparison.runs[1:], comparison.reference)


def table_cell(comparison: Comparison, run: str, metric: str) -> TableCell:
    """Return a run's metric as a table shows it."""
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
        is_behind=comparison.is_behind(run, metric),
    )


def fixed(value: float, *, sign: str = "") -> str:
    """Format a number with three decimals; a dash where it is undefined.

    Example:
        >>> fixed(0.98), fixed(float("nan")), fixed(0.1, sign="+")
        ('0.980', '–', '+0.100')
    """
    return DASH if math.isnan(value) else f"{value:{sign}.{_DIGITS}f}"


def p_value(p: float) -> str:
    """Format a p-value with two significant digits; a dash where it is undefined.

    Example:
        >>> p_value(0.0123), p_value(0.00001234), p_value(1.0)
        ('0.012', '1.2e-05', '1')
    """
    return DASH if math.isnan(p) else f"{p:.2g}"


def p_value_rows(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of the tests across folds, p-values adjusted in parentheses."""
    header: tuple[str, ...] = (
        "metric",
        "run",
        "reference − run",
        "paired t",
        "corrected t",
        "Wilcoxon",
    )
    adjusted = len(comparison.runs) > 2

    def format_test(test: PairedTest | None, holm: float) -> str:
        if test is None or math.isnan(test.p_value):
            return DASH
        return p_value(test.p_value) + (f" ({p_value(holm)})" if adjusted else "")

    rows: list[tuple[str, ...]] = [
        (
            get_metric(test.metric).name,
            test.run,
            fixed(test.paired.difference, sign="+"),
            format_test(test.paired, test.paired_holm),
            format_test(test.corrected, test.corrected_holm),
            format_test(test.wilcoxon, test.wilcoxon_holm),
        )
        for test in comparison.tests
    ]
    return header, rows


def delong_rows(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of DeLong's tests."""
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


_TESTS = (
    "reference_minus_run",
    "p_paired",
    "p_paired_holm",
    "p_corrected",
    "p_corrected_holm",
    "p_wilcoxon",
    "p_wilcoxon_holm",
    "p_run_better_holm",
)


def comparison_csv(comparison: Comparison) -> str:
    """Write every number, a row a run and metric; what is undefined is blank."""
    folds = [f"fold_{name}" for name in comparison.folds]
    header = ["run", "metric", "better", "num_folds", "mean", "sd", *_TESTS, "marked"]
    header += ["reference_worse", *folds]
    rows = []
    for run in comparison.runs:
        for metric in comparison.metrics:
            summary, test = comparison.summary(run, metric), comparison.test(run, metric)
            better = get_metric(metric).better
            num = len(summary.values) - summary.num_undefined
            marks = (comparison.is_marked(run, metric), comparison.is_behind(run, metric))
            marked = ["" if test is None else str(mark).lower() for mark in marks]
            numbers = [_exact(value) for value in (summary.mean, summary.sd, *_test_numbers(test))]
            values = [_exact(value) for value in summary.values]
            rows.append([run, metric, better, str(num), *numbers, *marked, *values])
    return _csv(header, rows)


def delong_csv(comparison: Comparison) -> str:
    """Write every number of DeLong's tests, a row a run and class; what is undefined is blank."""
    header = ["run", "class", "num_positive", "num_negative", "auc_reference", "auc_run"]
    header += ["standard_error", "z", "p", "p_holm", "p_run_better_holm"]
    rows = []
    for found in comparison.auc_tests:
        test = found.test
        counts = [str(test.num_positive), str(test.num_negative)]
        numbers = (test.auc_a, test.auc_b, test.standard_error, test.statistic, test.p_value)
        values = [_exact(value) for value in (*numbers, found.p_holm, found.reverse_holm)]
        rows.append([found.run, found.class_name, *counts, *values])
    return _csv(header, rows)


def write_comparison_tables(folder: Path, comparison: Comparison) -> tuple[Path, ...]:
    """Write ``comparison.md``, ``.csv`` and ``.tex``, and ``delong.csv`` where it was tested.

    Returns:
        The files written.
    """
    contents = {
        "comparison.md": comparison_markdown(comparison),
        "comparison.csv": comparison_csv(comparison),
        "comparison.tex": comparison_latex(comparison),
    }
    if comparison.auc_tests:
        contents["delong.csv"] = delong_csv(comparison)
    for name, text in contents.items():
        write_text(folder / name, text)
    return tuple(folder / name for name in contents)


def _test_numbers(test: RunTest | None) -> tuple[float, ...]:
    if test is None:
        return (math.nan,) * len(_TESTS)
    return (
        test.paired.difference,
        test.paired.p_value,
        test.paired_holm,
        math.nan if test.corrected is None else test.corrected.p_value,
        test.corrected_holm,
        test.wilcoxon.p_value,
        test.wilcoxon_holm,
        test.reverse_holm,
    )


def _exact(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return sheet_text(header, rows)


_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def comparison_markdown(comparison: Comparison) -> str:
    """Write the means, the tests across folds, DeLong's tests and the notes."""
    reference = _text(comparison.reference)
    metrics = [get_metric(metric) for metric in comparison.metrics]
    rows = [
        [
            f"**{reference}**" if run == comparison.reference else _text(run),
            *(_markdown_cell(table_cell(comparison, run, metric)) for metric in comparison.metrics),
        ]
        for run in row_order(comparison)
    ]
    heads = [f"{metric.short_name} {metric.arrow}".strip() for metric in metrics]
    parts = [
        f"# Comparison with {reference}",
        _markdown_table(["run", *heads], rows),
        _markdown_legend(comparison),
        *map(_text, comparison.verdicts),
    ]
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


def _markdown_legend(comparison: Comparison) -> str:
    num = len(comparison.folds)
    values = f"Mean ± standard deviation over {num} folds" if num > 1 else "One fold"
    star = (
        f" ★: {_text(comparison.reference)} is better, ☆: it is worse, each p < "
        f"{comparison.alpha:g} ({comparison.marking})."
    )
    return _legend(comparison, values, star)


def _legend(comparison: Comparison, values: str, star: str) -> str:
    """Explain the cells of a table: values, ranks, and the star where there were tests."""
    ranks = "Bold: best; underlined: second." if len(comparison.runs) > 2 else "Bold: best."
    return f"{values}. {ranks}{star if comparison.tests else ''}"


def _test_legend(comparison: Comparison) -> str:
    adjusted = (
        f"; in parentheses, adjusted for {len(comparison.runs) - 1} comparisons a metric (Holm)"
        if len(comparison.runs) > 2
        else ""
    )
    return f"P-values are one-sided: whether {_text(comparison.reference)} is better{adjusted}."


def _markdown_cell(cell: TableCell) -> str:
    mean = fixed(cell.mean)
    if mean == DASH:
        return mean
    if cell.is_best:
        mean = f"**{mean}**"
    elif cell.is_second:
        mean = f"<u>{mean}</u>"
    sd = fixed(cell.sd)
    spread = "" if sd == DASH else f" ± {sd}"
    return mean + spread + cell.mark


def _escaped_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return _markdown_table(header, [[_text(cell) for cell in row] for row in rows])


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


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
    r"""Write tables that need ``\usepackage{booktabs}`` and no other package."""
    metrics = [get_metric(metric) for metric in comparison.metrics]
    reference = latex_text(comparison.reference)
    parts = [r"% Needs \usepackage{booktabs}.", *(f"% {note}" for note in comparison.notes)]
    arrows = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "neither": ""}
    rows = [
        [
            rf"\textbf{{{reference}}}" if run == comparison.reference else latex_text(run),
            *(_latex_cell(table_cell(comparison, run, metric)) for metric in comparison.metrics),
        ]
        for run in row_order(comparison)
    ]
    heads = [f"{latex_text(metric.short_name)}{arrows[metric.better]}" for metric in metrics]
    parts.append(_latex_table(["", *heads], rows, _caption(comparison), "tab:comparison"))
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
        parts.append(_latex_table(["", *heads], rows, caption, "tab:comparison_pvalues"))
    if comparison.auc_tests:
        header, cells = delong_rows(comparison)
        caption = (
            f"DeLong's one-sided test of whether {reference} has the larger AUC, of the folds' "
            "mean probabilities on the test slides that they share."
        )
        escaped = [[latex_text(cell) for cell in row] for row in (header, *cells)]
        parts.append(_latex_table(escaped[0], escaped[1:], caption, "tab:comparison_delong"))
    return "\n".join(parts) + "\n"


def latex_text(text: str) -> str:
    r"""Escape the characters that are commands in LaTeX.

    Example:
        >>> print(latex_text("sgpmil_v2 & 50%"))
        sgpmil\_v2 \& 50\%
    """
    return "".join(_ESCAPED.get(character, character) for character in " ".join(text.split()))


def _latex_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str
) -> str:
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
    star = (
        rf" ${{}}^\star$: {latex_text(comparison.reference)} is better, ${{}}^\circ$: it is worse, "
        f"each $p < {comparison.alpha:g}$ ({latex_text(comparison.marking)})."
    )
    return _legend(comparison, values, star)


def _latex_cell(cell: TableCell) -> str:
    mean = _short(cell.mean)
    if not mean:
        return "--"
    if cell.is_best:
        mean = rf"\mathbf{{{mean}}}"
    elif cell.is_second:
        mean = rf"\underline{{{mean}}}"
    sd = _short(cell.sd)
    star = r"^{\star}" if cell.is_marked else r"^{\circ}" if cell.is_behind else ""
    return f"${mean}{star}{f'_{{{sd}}}' if sd else ''}$"


def _short(value: float) -> str:
    """Format 0.964 as .964, as the paper does; empty where undefined."""
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
