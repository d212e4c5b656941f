r"""Tables of the uncertainty study: means over seeds, and paired comparisons with a reference.

The difference $d_s$ of a design from the reference is that of the same seed, whose bags both have
seen. Where every seed draws training and test bags of its own, the $d_s$ are independent and
Student's paired t-test holds, with the interval $\bar d \pm t_{.975, n-1}\, s_d / \sqrt n$. Where
seeds divide the same bags (colon, phantoms), the variance is widened as Nadeau and Bengio do (see
`sgpmil.evaluation.comparison.significance`). P-values are two-sided, and Holm's correction is over
the designs of one column. A reference without a posterior has no standard deviation and no mutual
information; its largest probability stands in for them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.bags.files import write_text
from sgpmil.bags.tables import sheet_text
from sgpmil.evaluation.comparison.significance import corrected_t_test, holm, paired_t_test
from sgpmil.experiments.design_study import ScoredRun
from sgpmil.experiments.jobs import StudyPlan, is_done, read_result
from sgpmil.experiments.model_table import UNDEFINED, Spread, spread_of
from sgpmil.experiments.uncertainty_sets import UNCERTAINTY_SETS

GROUPS: dict[str, tuple[str, ...]] = {
    "Slides": ("auc", "balanced_accuracy", "ace", "nll", "temperature", "ace_t", "nll_t"),
    "Errors found": (
        *("errors_max", "errors_std", "errors_mi"),
        *("aurc_max", "aurc_std", "aurc_mi"),
    ),
    "Shift": ("auc@", "nll@", "nll_t@"),
    "Novelty": (
        *("novelty_patch@", "novelty_slide@", "found@", "flag@", "false_alarms"),
        "residual_patch@",
    ),
    "Instances": ("attention", "evidence", "single", "best"),
    "Process": (
        *("process_share", "variance_ratio", "prototypes", "inducing", "nmi", "nmi_kmeans"),
        "seconds_per_epoch",
    ),
}
"""Columns of each table; one that ends in @ is there once for each shift."""

_NAMES = {
    "auc": "bag AUC",
    "balanced_accuracy": "balanced accuracy",
    "ace": "ACE",
    "nll": "NLL",
    "temperature": "temperature",
    "ace_t": "ACE, T",
    "nll_t": "NLL, T",
    "errors_max": "error AUROC, max",
    "errors_std": "error AUROC, std",
    "errors_mi": "error AUROC, MI",
    "aurc_max": "AURC, max",
    "aurc_std": "AURC, std",
    "aurc_mi": "AURC, MI",
    "novelty_patch": "novelty, patch",
    "novelty_slide": "novelty, slide",
    "found": "slides found at 5 % false alarms",
    "flag": "slides flagged",
    "false_alarms": "false alarms",
    "residual_patch": "residual variance, patch",
    "process_share": "share of the process",
    "variance_ratio": "posterior/prior variance",
    "prototypes": "prototypes in use",
    "inducing": "inducing points",
    "nmi": "NMI",
    "nmi_kmeans": "NMI, k-means",
    "seconds_per_epoch": "s/epoch",
}
_COMPARED = ("Slides", "Errors found", "Shift", "Novelty", "Instances")
_NOT_COMPARED = ("temperature", "false_alarms")
_ALIKE = {"errors": "errors_max", "aurc": "aurc_max"}


@dataclass(frozen=True)
class PairedDifference:
    """A design less the reference over seeds, in one column.

    Args:
        data_set: Name of the data set.
        column: Key of the column.
        design: Name of the design.
        reference: Name of the reference.
        num_seeds: Number of seeds that both have.
        difference: Mean difference.
        low: Lower end of its 95 % interval.
        high: Upper end.
        p_value: Two-sided p-value.
        p_holm: The same after Holm's correction over the designs of the column.
    """

    data_set: str
    column: str
    design: str
    reference: str
    num_seeds: int
    difference: float
    low: float
    high: float
    p_value: float
    p_holm: float


def read_runs(out: Path, seeds: Sequence[int] | None = None) -> list[ScoredRun]:
    """Read the finished runs of a folder, in the order of their data sets and designs.

    Args:
        out: Folder of the results.
        seeds: Only these seeds.
    """
    runs = []
    for key in StudyPlan.read(out).jobs:
        found = read_result(out / f"{key}.json")
        if found is None or not is_done(found) or "columns" not in found:
            continue
        if seeds is None or found["seed"] in seeds:
            runs.append(ScoredRun.from_result(found))
    order = list(UNCERTAINTY_SETS)
    return sorted(runs, key=lambda run: order.index(run.data_set))


def compare_with(runs: Sequence[ScoredRun], reference: str) -> list[PairedDifference]:
    """Compare every design with the reference, over the seeds that both have."""
    found = []
    for data_set in dict.fromkeys(run.data_set for run in runs):
        here = [run for run in runs if run.data_set == data_set]
        base = {run.seed: run for run in here if run.design == reference}
        others = dict.fromkeys(run.design for run in here if run.design != reference)
        for column in _columns(here, _COMPARED):
            if column in _NOT_COMPARED:
                continue
            rows = [
                _difference([r for r in here if r.design == name], base, column) for name in others
            ]
            adjusted = holm([row.p_value for row in rows])
            found += [
                PairedDifference(**{**vars(row), "p_holm": p})
                for row, p in zip(rows, adjusted, strict=True)
                if row.num_seeds
            ]
    return found


def _difference(
    runs: Sequence[ScoredRun], base: Mapping[int, ScoredRun], column: str
) -> PairedDifference:
    from scipy.stats import t as student

    stand_in = _ALIKE.get(column.split("_")[0], column)
    pairs = []
    for run in runs:
        if run.seed in base:
            own = run.columns.get(column)
            other = base[run.seed].columns.get(column)
            other = base[run.seed].columns.get(stand_in) if other is None else other
            if own is not None and other is not None:
                pairs.append((own, other, run))
    first, second = [own for own, _, _ in pairs], [other for _, other, _ in pairs]
    overlap = 0.0
    if runs and not UNCERTAINTY_SETS[runs[0].data_set].independent and pairs:
        train, test = [r.num_train for _, _, r in pairs], [r.num_test for _, _, r in pairs]
        overlap = float(np.mean(np.array(test) / np.array(train)))
        found = corrected_t_test(first, second, "two-sided", num_train=train, num_test=test)
    else:
        found = paired_t_test(first, second, "two-sided")
    half = math.nan
    if len(pairs) > 1:
        spread = float(np.subtract(first, second).std(ddof=1))
        reach = float(student.ppf(0.975, len(pairs) - 1))
        half = reach * spread * math.sqrt(1 / len(pairs) + overlap)
    return PairedDifference(
        data_set=runs[0].data_set,
        column=column,
        design=runs[0].design,
        reference=next(iter(base.values())).design if base else "",
        num_seeds=len(pairs),
        difference=found.difference,
        low=found.difference - half,
        high=found.difference + half,
        p_value=found.p_value,
        p_holm=math.nan,
    )


def write_tables(
    out: Path, seeds: Sequence[int], reference: str, *, seeds_text: str
) -> tuple[Path, ...]:
    """Write the tables of some seeds, and ``runs.csv`` of all runs.

    Args:
        out: Folder of the results.
        seeds: Seeds that the tables are of.
        reference: Design that the others are compared with.
        seeds_text: The seeds as text, for titles and names of files.

    Raises:
        OSError: A file cannot be written.
    """
    runs = read_runs(out, seeds)
    compared = compare_with(runs, reference)
    name = seeds_text.replace(",", "_").replace(" ", "")
    files = {
        out / f"table-seeds-{name}.md": _markdown(runs, compared, reference, seeds_text),
        out / f"comparisons-seeds-{name}.csv": _csv([vars(row) for row in compared]),
        out / "runs.csv": _csv([_flat(run) for run in read_runs(out)]),
    }
    for path, text in files.items():
        write_text(path, text)
    return tuple(files)


def spreads(runs: Sequence[ScoredRun], design: str, columns: Sequence[str]) -> dict[str, Spread]:
    """Summarise the columns of a design over its runs."""
    own = [run for run in runs if run.design == design]
    return {column: spread_of(run.columns.get(column) for run in own) for column in columns}


def column_name(column: str) -> str:
    """Return a column's name in words.

    Example:
        >>> column_name("nll_t@unseen")
        'NLL, T, unseen'
    """
    key, at, shift = column.partition("@")
    return _NAMES.get(key, key) + (f", {shift}" if at else "")


def _columns(runs: Sequence[ScoredRun], groups: Sequence[str]) -> list[str]:
    """Return the columns of groups that at least one run has."""
    present = {key for run in runs for key, value in run.columns.items() if value is not None}
    shifts = dict.fromkeys(
        key.partition("@")[2] for run in runs for key in run.columns if "@" in key
    )
    wanted = [
        f"{key}{shift}"
        for group in groups
        for key in GROUPS[group]
        for shift in (shifts if key.endswith("@") else ("",))
    ]
    return [key for key in wanted if key in present]


def _markdown(
    runs: Sequence[ScoredRun], compared: Sequence[PairedDifference], reference: str, seeds_text: str
) -> str:
    lines = [
        "# Uncertainty of designs",
        "",
        f"Seeds {seeds_text}: mean ± standard deviation over seeds. T: after temperature scaling "
        "on the validation bags.",
        f"Compared with {reference}: mean difference over the same seeds, its 95 % interval, and "
        "the two-sided p-value after Holm's correction over the designs of the column. Every seed "
        "draws training and test bags of its own, so the t-test is Student's paired one; where "
        "seeds divide the same bags, it is corrected (Nadeau and Bengio) and this is noted.",
    ]
    for data_set in dict.fromkeys(run.data_set for run in runs):
        here = [run for run in runs if run.data_set == data_set]
        source = UNCERTAINTY_SETS[data_set]
        lines += ["", f"## {data_set}", "", source.about]
        if not source.independent:
            lines += ["Seeds divide the same bags: the tests are corrected."]
        for group in GROUPS:
            columns = _columns(here, [group])
            if columns:
                lines += ["", f"### {data_set}: {group.lower()}", "", *_means(here, columns)]
        rows = [row for row in compared if row.data_set == data_set]
        if rows:
            lines += ["", f"### {data_set}: compared with {reference}", "", *_differences(rows)]
    return "\n".join(lines) + "\n"


def _means(runs: Sequence[ScoredRun], columns: Sequence[str]) -> list[str]:
    lines = _header(["design", "seeds", *map(column_name, columns)])
    for design in dict.fromkeys(run.design for run in runs):
        found = spreads(runs, design, columns)
        count = sum(run.design == design for run in runs)
        lines.append(_line([design, str(count), *(format_spread(found[c]) for c in columns)]))
    return lines


def _differences(rows: Sequence[PairedDifference]) -> list[str]:
    columns = list(dict.fromkeys(row.column for row in rows))
    found = {(row.design, row.column): row for row in rows}
    lines = _header(["design", *map(column_name, columns)])
    for design in dict.fromkeys(row.design for row in rows):
        lines.append(_line([design, *(_cell(found.get((design, c))) for c in columns)]))
    return lines


def _cell(row: PairedDifference | None) -> str:
    if row is None:
        return UNDEFINED
    if math.isnan(row.low):
        return f"{row.difference:+.3f}"
    p = "" if math.isnan(row.p_holm) else f", p {row.p_holm:.2g}"
    return f"{row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}]{p}"


def format_spread(spread: Spread) -> str:
    """Format a mean with its standard deviation."""
    if math.isnan(spread.mean):
        return UNDEFINED
    return f"{spread.mean:.3f}" + ("" if math.isnan(spread.sd) else f" ± {spread.sd:.3f}")


def _header(names: Sequence[str]) -> list[str]:
    return [_line(names), "|---" * len(names) + "|"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _flat(run: ScoredRun) -> dict[str, Any]:
    return {**{k: v for k, v in vars(run).items() if k != "columns"}, **run.columns}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    header = list(dict.fromkeys(key for row in rows for key in row))
    found = ([row.get(key) for key in header] for row in rows)
    return sheet_text(header, ([None if _is_missing(v) else v for v in row] for row in found))


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
