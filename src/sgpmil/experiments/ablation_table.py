"""Tables and figures of the ablations: means over seeds, and differences from the base."""

from collections.abc import Sequence
from pathlib import Path

from sgpmil.bags.files import write_text
from sgpmil.experiments.ablation_designs import ABLATIONS, AXES, AblationRow
from sgpmil.experiments.design_study import ScoredRun, read_scored
from sgpmil.experiments.seed_spreads import (
    COLUMN_NAMES,
    PairedComparison,
    column_interval,
    compare_runs,
    comparison_row,
    corrected,
    csv_text,
    markdown_table,
    run_row,
)
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.study_figures import Difference, differences_figure

COLUMNS = (
    *("balanced_accuracy", "auc", "ace", "nll"),
    *("attention_auc", "single_auc", "seconds_per_epoch"),
)
_COMPARED = ("auc", "ace", "nll", "attention_auc")
_DRAWN = ("auc", "nll", "attention_auc")
_GRID_BASE = "paper"
_SIGNIFICANT = 0.05
_PUBLISHED = "paper on CAMELYON16: ACC / AUC / ACE; instance AUC / ACE"
_NAMES = {"digits-200": "digits", "colon": "colon", "camelyon": "camelyon"}


def runs_of(runs: Sequence[ScoredRun], data_set: str, row: AblationRow) -> list[ScoredRun]:
    """Return the runs of a row on a data set."""
    return [r for r in runs if r.data_set == data_set and r.design == row.design.name]


def compare_with_base(
    runs: Sequence[ScoredRun], data_set: str, base: str, column: str
) -> dict[str, PairedComparison]:
    """Compare every design of a base with it on a data set.

    Returns:
        The comparison by the name of the design, with p-values after Holm's correction over all
        of them.
    """
    reference = [r for r in runs if r.data_set == data_set and r.design == base]
    if not reference:
        return {}
    names = dict.fromkeys(row.design.name for row in ABLATIONS if _base_of(row) == base)
    found = []
    for name in names:
        own = [r for r in runs if r.data_set == data_set and r.design == name]
        if own and name != base:
            independent = data_set != "colon"
            one = compare_runs(own, reference, column, independent=independent)
            if one is not None:
                found.append(one)
    return {row.design: row for row in corrected(found)}


def write_ablation_tables(out: Path, seeds: Sequence[int]) -> tuple[Path, ...]:
    """Write ``ablations.md``, ``runs.csv``, ``comparisons.csv`` and figures.

    Args:
        out: Folder of the results.
        seeds: Seeds that the tables are of.

    Raises:
        OSError: A file cannot be written.
    """
    runs = read_scored(out, seeds)
    lines, compared, files = _introduction(), [], []
    for data_set in [name for name in _NAMES if any(r.data_set == name for r in runs)]:
        tests = {
            (base, column): compare_with_base(runs, data_set, base, column)
            for base in AXES
            for column in _COMPARED
        }
        compared += [comparison_row(row) for found in tests.values() for row in found.values()]
        for base in (*AXES, "grid"):
            rows = [r for r in ABLATIONS if r.base == base and runs_of(runs, data_set, r)]
            if not rows:
                continue
            title = "the paper's grid" if base == "grid" else f"around `{base}`"
            lines += ["", f"## {_NAMES[data_set]}, {title}", ""]
            lines += _table(rows, runs, data_set, tests)
            path = out / f"ablations-{_NAMES[data_set]}-{base}.png"
            panels = _panels(rows, tests, base)
            if any(differences for _, differences in panels):
                figure = differences_figure(
                    panels,
                    f"{_NAMES[data_set]}: difference from {_base_of(rows[0])}, 95 % intervals",
                    "difference",
                )
                save_figure(figure, path)
                files.append(path)
    texts = {
        out / "ablations.md": "\n".join(lines) + "\n",
        out / "runs.csv": csv_text([run_row(run) for run in runs]),
        out / "comparisons.csv": csv_text(compared),
    }
    for path, text in texts.items():
        write_text(path, text)
    return (*texts, *files)


def _introduction() -> list[str]:
    return [
        "# Ablations",
        "",
        "Means over seeds ± half of the 95 % interval. A star marks a difference from the base "
        "over the same seeds with p < .05, two-sided, after Holm's correction over all designs "
        "of the base on the data set and column.",
    ]


def _base_of(row: AblationRow) -> str:
    return _GRID_BASE if row.base == "grid" else row.base


def _table(
    rows: Sequence[AblationRow],
    runs: Sequence[ScoredRun],
    data_set: str,
    tests: dict[tuple[str, str], dict[str, PairedComparison]],
) -> list[str]:
    has_published = any(row.published for row in rows)
    header = [
        *("axis", "value", "seeds"),
        *(COLUMN_NAMES[column] for column in COLUMNS),
        *([_PUBLISHED] if has_published else []),
    ]
    lines = []
    for row in rows:
        own = runs_of(runs, data_set, row)
        cells = []
        for column in COLUMNS:
            test = tests.get((_base_of(row), column), {}).get(row.design.name)
            star = "*" if test is not None and test.p_holm < _SIGNIFICANT else ""
            cells.append(column_interval(own, column).text + star)
        published = [_published(row)] if has_published else []
        lines.append([row.axis, row.value, str(len(own)), *cells, *published])
    return markdown_table(header, lines)


def _published(row: AblationRow) -> str:
    if not row.published:
        return "–"
    bag, instance = row.published[:3], row.published[3:]
    return f"{' / '.join(map(_short, bag))}; {' / '.join(map(_short, instance))}"


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _panels(
    rows: Sequence[AblationRow],
    tests: dict[tuple[str, str], dict[str, PairedComparison]],
    base: str,
) -> list[tuple[str, list[Difference]]]:
    panels = []
    for column in _DRAWN:
        found = tests[_GRID_BASE if base == "grid" else base, column]
        differences = [
            Difference(
                row.value,
                row.axis if base != "grid" else "",
                found[row.design.name].interval.mean,
                found[row.design.name].interval.low,
                found[row.design.name].interval.high,
            )
            for row in rows
            if row.design.name in found
        ]
        panels.append((COLUMN_NAMES[column], differences))
    return panels
