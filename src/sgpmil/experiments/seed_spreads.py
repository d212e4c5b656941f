r"""Means over seeds with intervals, paired differences over seeds, and their tables.

The 95 % interval of a mean over $n$ seeds is $\bar x \pm t_{.975, n-1}\, s / \sqrt n$. Where seeds
divide the same bags, the variance $1/n$ is widened by $n_\text{test} / n_\text{train}$ as Nadeau
and Bengio do. A comparison is paired: bags of a seed are the same for all designs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgpmil.bags.tables import sheet_text
from sgpmil.evaluation.comparison.significance import (
    Alternative,
    corrected_t_test,
    holm,
    paired_t_test,
)
from sgpmil.experiments.design_study import ScoredRun

CONFIDENCE = 0.95

COLUMN_NAMES = {
    "auc": "bag AUC",
    "balanced_accuracy": "balanced accuracy",
    "ace": "ACE",
    "nll": "NLL",
    "attention_auc": "instance AUC, attention",
    "evidence_auc": "instance AUC, evidence",
    "single_auc": "instance AUC, patch alone",
    "best_auc": "instance AUC, best score",
    "seconds_per_epoch": "s/epoch",
}
"""Names of columns in words."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its interval.

    Args:
        mean: The mean; NaN without a value.
        low: Lower end of the 95 % interval; NaN of one value.
        high: Upper end.
        count: Number of values.
    """

    mean: float
    low: float
    high: float
    count: int

    @property
    def text(self) -> str:
        """The mean and half the interval's length."""
        if math.isnan(self.mean):
            return "–"
        half = "" if math.isnan(self.low) else f" ± {self.mean - self.low:.3f}"
        return f"{self.mean:.3f}{half}"


@dataclass(frozen=True)
class PairedComparison:
    """A design less a reference over the seeds that both have, in one column.

    Args:
        data_set: Name of the data set.
        column: Key of the column.
        design: Name of the design.
        reference: Name of the reference.
        interval: Mean difference with its interval.
        p_value: P-value of the t-test; NaN where undefined.
        p_holm: The same after Holm's correction over a family of comparisons.
    """

    data_set: str
    column: str
    design: str
    reference: str
    interval: Interval
    p_value: float
    p_holm: float = math.nan


def interval_of(values: Sequence[float | None], overlap: float = 0.0) -> Interval:
    """Return the mean of values with its interval; None and NaN are left out.

    Args:
        values: The values.
        overlap: Number of test bags over that of training bags, where seeds divide the same bags.

    Example:
        >>> interval_of([0.8, 0.9, 1.0]).text
        '0.900 ± 0.248'
    """
    from scipy.stats import t as student

    known = np.array([v for v in values if v is not None and not math.isnan(v)])
    if not len(known):
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(known.mean())
    if len(known) == 1:
        return Interval(mean, math.nan, math.nan, 1)
    reach = float(student.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
    half = reach * float(known.std(ddof=1)) * math.sqrt(1 / len(known) + overlap)
    return Interval(mean, mean - half, mean + half, len(known))


def column_interval(runs: Sequence[ScoredRun], column: str) -> Interval:
    """Return the mean of a column over runs of one design on one data set."""
    return interval_of([run.columns.get(column) for run in runs])


def compare_runs(
    design: Sequence[ScoredRun],
    reference: Sequence[ScoredRun],
    column: str,
    *,
    alternative: Alternative = "two-sided",
    independent: bool = True,
) -> PairedComparison | None:
    """Compare two designs on one data set over the seeds that both have.

    Args:
        design: Runs of the design.
        reference: Runs of the reference.
        column: Key of the column.
        alternative: Alternative hypothesis of the test.
        independent: Whether every seed draws bags of its own.

    Returns:
        The comparison; None where they share no seed.
    """
    base = {run.seed: run for run in reference}
    pairs = []
    for run in design:
        if run.seed in base:
            own, other = run.columns.get(column), base[run.seed].columns.get(column)
            if own is not None and other is not None:
                pairs.append((own, other, run))
    if not pairs:
        return None
    first, second = [own for own, _, _ in pairs], [other for _, other, _ in pairs]
    train, test = [r.num_train for _, _, r in pairs], [r.num_test for _, _, r in pairs]
    overlap = 0.0 if independent else float(np.mean(np.array(test) / np.array(train)))
    found = (
        paired_t_test(first, second, alternative)
        if independent
        else corrected_t_test(first, second, alternative, num_train=train, num_test=test)
    )
    return PairedComparison(
        data_set=design[0].data_set,
        column=column,
        design=design[0].design,
        reference=reference[0].design,
        interval=interval_of([a - b for a, b in zip(first, second, strict=True)], overlap),
        p_value=found.p_value,
    )


def corrected(rows: Sequence[PairedComparison]) -> list[PairedComparison]:
    """Correct the p-values of a family of comparisons by Holm's method."""
    adjusted = holm([row.p_value for row in rows])
    return [
        PairedComparison(**{**vars(row), "p_holm": p})
        for row, p in zip(rows, adjusted, strict=True)
    ]


def comparison_text(row: PairedComparison) -> str:
    """Return the difference, its interval and the p-value as a cell of a table."""
    found = row.interval
    if math.isnan(found.low):
        return f"{found.mean:+.3f}"
    p = row.p_holm if not math.isnan(row.p_holm) else row.p_value
    shown = "" if math.isnan(p) else f", p {p:.2g}"
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]{shown}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; None and NaN are empty."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    found = ([row.get(key) for key in header] for row in rows)
    return sheet_text(header, ([None if _is_missing(v) else v for v in row] for row in found))


def comparison_row(row: PairedComparison) -> dict[str, Any]:
    """Return a comparison as a row of a file."""
    found = row.interval
    return {
        **{k: v for k, v in vars(row).items() if k != "interval"},
        "seeds": found.count,
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
    }


def run_row(run: ScoredRun) -> dict[str, Any]:
    """Return a run as a row of a file."""
    return {**{k: v for k, v in vars(run).items() if k != "columns"}, **run.columns}


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
