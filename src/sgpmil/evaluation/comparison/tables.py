"""A comparison as files: Markdown to read, LaTeX to publish, CSV to compute with."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from sgpmil.bags.files import write_text
from sgpmil.evaluation.comparison.latex import comparison_latex
from sgpmil.evaluation.comparison.markdown import comparison_markdown
from sgpmil.evaluation.comparison.result import Comparison, RunTest
from sgpmil.evaluation.metrics import get_metric

__all__ = [
    "comparison_csv",
    "comparison_latex",
    "comparison_markdown",
    "delong_csv",
    "write_comparison_tables",
]

_TESTS = (
    "reference_minus_run",
    "p_paired",
    "p_paired_holm",
    "p_corrected",
    "p_corrected_holm",
    "p_wilcoxon",
    "p_wilcoxon_holm",
)


def comparison_csv(comparison: Comparison) -> str:
    """Write every number, a row a run and metric; what is undefined is blank.

    Args:
        comparison: What to write.
    """
    folds = [f"fold_{name}" for name in comparison.folds]
    header = ["run", "metric", "better", "num_folds", "mean", "sd", *_TESTS, "marked", *folds]
    rows = []
    for run in comparison.runs:
        for metric in comparison.metrics:
            summary, test = comparison.summary(run, metric), comparison.test(run, metric)
            better = get_metric(metric).better
            num = len(summary.values) - summary.num_undefined
            marked = "" if test is None else str(comparison.is_marked(run, metric)).lower()
            numbers = [_exact(value) for value in (summary.mean, summary.sd, *_test_numbers(test))]
            values = [_exact(value) for value in summary.values]
            rows.append([run, metric, better, str(num), *numbers, marked, *values])
    return _csv(header, rows)


def delong_csv(comparison: Comparison) -> str:
    """Write every number of DeLong's tests, a row a run and class; what is undefined is blank.

    Args:
        comparison: What to write.
    """
    header = ["run", "class", "num_positive", "num_negative", "auc_reference", "auc_run"]
    header += ["standard_error", "z", "p", "p_holm"]
    rows = []
    for found in comparison.auc_tests:
        test = found.test
        counts = [str(test.num_positive), str(test.num_negative)]
        numbers = (test.auc_a, test.auc_b, test.standard_error, test.statistic, test.p_value)
        values = [_exact(value) for value in (*numbers, found.p_holm)]
        rows.append([found.run, found.class_name, *counts, *values])
    return _csv(header, rows)


def write_comparison_tables(folder: Path, comparison: Comparison) -> tuple[Path, ...]:
    """Write ``comparison.md``, ``.csv`` and ``.tex``, and ``delong.csv`` where it was tested.

    Args:
        folder: Where to; made where it is missing.
        comparison: What to write.

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
    )


def _exact(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
