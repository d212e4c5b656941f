"""Tables and figures of the study of stress.

SGPMIL is compared with every other model: one-sided paired t-tests over seeds that it is ahead,
with Holm's correction over all models and values of an axis. A model *fails* at a value where the
95 % interval of its mean bag AUC reaches down to .5.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from sgpmil.bags.files import write_text
from sgpmil.experiments.design_study import ScoredRun, read_scored
from sgpmil.experiments.seed_spreads import (
    COLUMN_NAMES,
    PairedComparison,
    column_interval,
    compare_runs,
    comparison_row,
    comparison_text,
    corrected,
    csv_text,
    markdown_table,
    run_row,
)
from sgpmil.experiments.stress_study import STRESS_AXES, STRESS_MODELS, stress_set
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.study_figures import Curve, Panel, curves_figure

REFERENCE = "sgpmil"

_SHOWN = ("auc", "attention_auc", "best_auc", "ace", "nll")
_COMPARED = ("auc", "attention_auc", "best_auc")
_DRAWN = ("auc", "attention_auc", "best_auc", "ace")
_TITLES = {
    "witness": "Share of targets in positive bags",
    "noise": "Wrong labels",
    "bags": "Number of training bags",
}
_LABELS = {
    "witness": "Targets in positive bags (%)",
    "noise": "Wrong labels (%)",
    "bags": "Training bags",
}
_CHANCE = 0.5

Runs = Mapping[tuple[float, str], Sequence[ScoredRun]]
"""Runs of each value and model of an axis."""


def runs_of_axis(runs: Sequence[ScoredRun], axis: str) -> dict[tuple[float, str], list[ScoredRun]]:
    """Sort the runs of an axis by value and model."""
    found: dict[tuple[float, str], list[ScoredRun]] = {}
    for value in STRESS_AXES[axis]:
        name = stress_set(axis, value, Path()).name
        for model in STRESS_MODELS:
            own = [run for run in runs if run.data_set == name and run.design == model]
            if own:
                found[value, model] = own
    return found


def compare_axis(runs: Runs, column: str) -> list[tuple[float, PairedComparison]]:
    """Test whether SGPMIL is ahead of every other model at every value of an axis."""
    places, rows = [], []
    for (value, model), own in runs.items():
        if model == REFERENCE or (value, REFERENCE) not in runs:
            continue
        found = compare_runs(runs[value, REFERENCE], own, column, alternative="greater")
        if found is not None:
            places.append(value)
            rows.append(found)
    return list(zip(places, corrected(rows), strict=True))


def write_stress_tables(out: Path, seeds: Sequence[int]) -> tuple[Path, ...]:
    """Write ``stress.md``, ``runs.csv``, ``comparisons.csv`` and a figure an axis.

    Args:
        out: Folder of the results.
        seeds: Seeds that the tables are of.

    Raises:
        OSError: A file cannot be written.
    """
    runs = read_scored(out, seeds)
    lines, compared, files = _introduction(), [], []
    for axis in STRESS_AXES:
        own = runs_of_axis(runs, axis)
        if not own:
            continue
        lines += ["", f"## {_TITLES[axis]}", "", f"![{_TITLES[axis]}](stress-{axis}.png)"]
        for column in _SHOWN:
            lines += ["", f"### {COLUMN_NAMES[column]}", "", *_spread_table(own, axis, column)]
        for column in _COMPARED:
            rows = compare_axis(own, column)
            compared += [{"axis": axis, "value": v, **comparison_row(r)} for v, r in rows]
            if rows:
                title = f"### SGPMIL ahead in {COLUMN_NAMES[column]}"
                lines += ["", title, "", *_comparison_table(rows, axis)]
        figure = curves_figure(_panels(own, axis), _TITLES[axis])
        path = out / f"stress-{axis}.png"
        save_figure(figure, path)
        files.append(path)
    texts = {
        out / "stress.md": "\n".join(lines) + "\n",
        out / "runs.csv": csv_text([run_row(run) for run in runs]),
        out / "comparisons.csv": csv_text(compared),
    }
    for path, text in texts.items():
        write_text(path, text)
    return (*texts, *files)


def _introduction() -> list[str]:
    return [
        "# Stress",
        "",
        "Means over seeds ± half of the 95 % interval; n is the number of seeds where it differs "
        "from that of SGPMIL. † marks where the interval of the bag AUC reaches down to .5. "
        "Differences are SGPMIL less the model with their 95 % intervals, and one-sided p-values "
        "after Holm's correction over all models and values of the axis.",
    ]


def _spread_table(runs: Runs, axis: str, column: str) -> list[str]:
    values = [value for value in STRESS_AXES[axis] if any(v == value for v, _ in runs)]
    models = [model for model in STRESS_MODELS if any(m == model for _, m in runs)]
    rows = []
    for model in models:
        cells = []
        for value in values:
            own = runs.get((value, model), ())
            found = column_interval(own, column)
            count = len(runs.get((value, REFERENCE), ()))
            number = f" (n = {found.count})" if found.count not in (0, count) else ""
            failed = " †" if column == "auc" and own and fails(own) else ""
            cells.append(f"{found.text}{number}{failed}")
        rows.append([model, *cells])
    return markdown_table(["model", *(_value_name(axis, v) for v in values)], rows)


def fails(runs: Sequence[ScoredRun]) -> bool:
    """Return whether the interval of the mean bag AUC reaches down to .5."""
    found = column_interval(runs, "auc")
    return (found.mean if math.isnan(found.low) else found.low) <= _CHANCE


def _comparison_table(rows: Sequence[tuple[float, PairedComparison]], axis: str) -> list[str]:
    found = {(value, row.reference): row for value, row in rows}
    values = list(dict.fromkeys(value for value, _ in rows))
    cells = [
        [
            model,
            *(
                comparison_text(found[value, model]) if (value, model) in found else "–"
                for value in values
            ),
        ]
        for model in STRESS_MODELS
        if any(m == model for _, m in found)
    ]
    return markdown_table(["less", *(_value_name(axis, value) for value in values)], cells)


def _value_name(axis: str, value: float) -> str:
    return f"{value:g} bags" if axis == "bags" else f"{value:g} %"


def _panels(runs: Runs, axis: str) -> list[Panel]:
    panels = []
    for column in _DRAWN:
        curves = []
        for model in STRESS_MODELS:
            points = [
                (value, column_interval(runs[value, model], column))
                for value in STRESS_AXES[axis]
                if (value, model) in runs
            ]
            points = [(value, found) for value, found in points if not math.isnan(found.mean)]
            if points:
                curves.append(
                    Curve(
                        model,
                        [value for value, _ in points],
                        [found.mean for _, found in points],
                        [found.low for _, found in points],
                        [found.high for _, found in points],
                    )
                )
        chance = _CHANCE if column.endswith("auc") else None
        is_log = axis != "noise"
        panels.append(Panel(COLUMN_NAMES[column], _LABELS[axis], curves, is_log, chance))
    return panels
