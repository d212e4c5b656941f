"""Tables and figure of the MNIST study, beside the SGPMIL paper's figures.

Rows of a seed saw the same bags, and every seed deals the digits anew, so differences of a seed are
paired and Student's t-test holds for them. P-values are two-sided and not corrected.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from sgpmil.bags.files import write_text
from sgpmil.bags.tables import sheet_text
from sgpmil.evaluation.comparison.significance import paired_t_test
from sgpmil.experiments.jobs import StudyPlan, is_done, read_result
from sgpmil.experiments.mnist_rows import COLUMNS, PAPER, ROWS
from sgpmil.experiments.model_table import UNDEFINED, Spread, spread_of
from sgpmil.report.figures.canvas import (
    COLOURS,
    GREY,
    SMALL_SIZE,
    new_figure,
    save_figure,
    style_axes,
)

NAMES: Mapping[str, str] = {
    "auc": "bag AUC",
    "ace": "bag ACE",
    "instance_f1": "instance F1",
    "instance_froc": "FROC",
    "instance_auc": "instance AUC",
    "instance_ace": "instance ACE",
    "balanced_accuracy": "balanced accuracy",
    "nll": "NLL",
    "instance_f1_half": "F1 at .5",
    "instance_ceiling": "FROC's ceiling",
    "instance_ace_pooled": "instance ACE, pooled",
    "evidence_auc": "AUC of evidence",
    "single_auc": "AUC of single instances",
}
"""Columns by key, in the order of the tables."""

_MORE = tuple(key for key in NAMES if key not in COLUMNS)
_LOWER = ("ace", "instance_ace", "nll", "instance_ace_pooled")
"""Columns in which the lower value is better."""
REFERENCE = "sgpmil"
"""Row that the others are compared with."""


@dataclass(frozen=True)
class MnistRun:
    """A finished run.

    Args:
        data_set: Name of the data set.
        row: Name of the row.
        seed: Seed.
        columns: Values of `sgpmil.experiments.mnist_study.measure`.
        num_train: Number of training bags.
        num_test: Number of bags that it was measured on.
        parameters: Number of trainable parameters.
        seconds_per_epoch: Median seconds of an epoch; None after a single one.
        seconds_to_train: Seconds of the training.
        seconds_to_predict: Seconds of the prediction.
    """

    data_set: str
    row: str
    seed: int
    columns: Mapping[str, float | None]
    num_train: int
    num_test: int
    parameters: int
    seconds_per_epoch: float | None
    seconds_to_train: float
    seconds_to_predict: float


_TAKEN = (
    *("columns", "num_train", "num_test", "parameters"),
    *("seconds_per_epoch", "seconds_to_train", "seconds_to_predict"),
)


def read_mnist_runs(out: Path) -> list[MnistRun]:
    """Read the finished runs of a folder, in the order of the table's rows."""
    runs = []
    for key in StudyPlan.read(out).jobs:
        found = read_result(out / f"{key}.json")
        if found is not None and is_done(found) and set(_TAKEN) <= found.keys():
            runs.append(
                MnistRun(
                    found["data_set"],
                    found["variant"],
                    found["seed"],
                    **{name: found[name] for name in _TAKEN},
                )
            )
    order = {name: number for number, name in enumerate(ROWS)}
    return sorted(
        runs,
        key=lambda run: (
            run.data_set,
            order.get(run.row.partition("@")[0], len(order)),
            run.row,
            run.seed,
        ),
    )


def write_mnist_tables(out: Path) -> tuple[Path, ...]:
    """Write ``table.md``, ``runs.csv`` and a figure of each data set; nothing without a run.

    Raises:
        OSError: A file cannot be written.
    """
    runs = read_mnist_runs(out)
    if not runs:
        return ()
    files = [out / "table.md", out / "runs.csv"]
    write_text(files[0], _markdown(runs))
    write_text(files[1], _csv(runs))
    for data_set in _names(run.data_set for run in runs):
        files.append(out / f"{data_set}.png")
        save_figure(mnist_figure([run for run in runs if run.data_set == data_set]), files[-1])
    return tuple(files)


def mnist_cells(runs: Sequence[MnistRun], row: str) -> tuple[str, ...]:
    """Return the cells of a row, under `HEADER`: the paper's figures are in parentheses."""
    own = [run for run in runs if run.row == row]
    paper = PAPER.get(ROWS[row].paper) if row in ROWS else None
    published = (None,) * len(COLUMNS) if paper is None else paper.values
    seconds = spread_of(run.seconds_per_epoch for run in own)
    return (
        row,
        str(len(own)),
        *(
            _cell(_spread(own, column)) + ("" if value is None else f" ({_number(value)})")
            for column, value in zip(COLUMNS, published, strict=True)
        ),
        _number(seconds.mean, 2),
        f"{own[0].parameters:,}",
    )


HEADER = ("row", "runs", *(NAMES[column] for column in COLUMNS), "s/epoch", "parameters")


def _markdown(runs: Sequence[MnistRun]) -> str:
    lines = ["# MNIST bags", ""]
    lines += [
        "Mean ± standard deviation over seeds, each of which deals all digits anew; in parentheses "
        "the same model in the SGPMIL paper. Instances are those of positive bags, scored by "
        "attention.",
    ]
    for data_set in _names(run.data_set for run in runs):
        here = [run for run in runs if run.data_set == data_set]
        rows = _names(run.row for run in here)
        train, test = here[0].num_train, here[0].num_test
        lines += ["", f"## {data_set}", "", f"{train:,} bags to train on, {test:,} to measure on."]
        lines += ["", *_table(HEADER, [mnist_cells(here, row) for row in rows])]
        more = [c for c in _MORE if any(run.columns.get(c) is not None for run in here)]
        shown = [
            (row, *(_cell(_spread([r for r in here if r.row == row], c)) for c in more))
            for row in rows
        ]
        lines += ["", *_table(("row", *(NAMES[column] for column in more)), shown)]
        compared = _compared(here, rows)
        if compared:
            lines += ["", f"`{REFERENCE}` less each row, paired over seeds, with its p-value:", ""]
            lines += _table(("row", *(NAMES[column] for column in COLUMNS)), compared)
    return "\n".join(lines) + "\n"


def _compared(runs: Sequence[MnistRun], rows: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row's differences from the reference, over the seeds that both have."""
    base = {run.seed: run for run in runs if run.row == REFERENCE}
    found = []
    for row in rows:
        own = [run for run in runs if run.row == row and run.seed in base]
        if row == REFERENCE or len(own) < 2:
            continue
        cells = []
        for column in COLUMNS:
            pairs = [(base[run.seed].columns.get(column), run.columns.get(column)) for run in own]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            if len(known) < 2:
                cells.append(UNDEFINED)
                continue
            test = paired_t_test([a for a, _ in known], [b for _, b in known], "two-sided")
            sign = "+" if test.difference > 0 else ""
            cells.append(f"{sign}{_number(test.difference)}, p = {_number(test.p_value)}")
        found.append((row, *cells))
    return found


def _csv(runs: Sequence[MnistRun]) -> str:
    facts = ("data_set", "row", "seed", "num_train", "num_test", "parameters")
    seconds = ("seconds_per_epoch", "seconds_to_train", "seconds_to_predict")
    keys = [key for key in NAMES if any(key in run.columns for run in runs)]
    rows = [
        (
            *(getattr(run, name) for name in facts),
            *("" if run.columns.get(key) is None else run.columns[key] for key in keys),
            *("" if getattr(run, name) is None else getattr(run, name) for name in seconds),
        )
        for run in runs
    ]
    return sheet_text((*facts, *keys, *seconds), rows)


def mnist_figure(runs: Sequence[MnistRun]) -> Figure:
    """Draw the columns of a data set: a point a row with its spread, beside the paper's figure."""
    rows = _names(run.row for run in runs)[::-1]
    figure = new_figure(11.0, 2.2 + 0.42 * len(rows))
    grid = figure.subplots(2, 3, sharey=True).flat
    for axes, column in zip(grid, COLUMNS, strict=True):
        place = COLUMNS.index(column)
        for number, row in enumerate(rows):
            found = _spread([run for run in runs if run.row == row], column)
            colour = COLOURS[1] if row.startswith("sgpmil") else COLOURS[0]
            spread = 0.0 if math.isnan(found.sd) else found.sd
            axes.errorbar(found.mean, number, xerr=spread, fmt="o", ms=4, color=colour, lw=1.2)
            paper = PAPER.get(ROWS[row].paper) if row in ROWS else None
            if paper is not None:
                axes.plot(paper.values[place], number, "D", ms=5, mfc="none", mec=GREY)
        axes.set_yticks(range(len(rows)), rows, fontsize=SMALL_SIZE)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.grid(axis="x", lw=0.4, alpha=0.5)
        better = "lower is better" if column in _LOWER else "higher is better"
        style_axes(axes, title=NAMES[column], x_label=better)
    names = _names(run.data_set for run in runs)
    has_paper = any(row in ROWS and ROWS[row].paper for row in rows)
    figure.suptitle(
        f"{', '.join(names)}: mean and standard deviation over seeds"
        + ("; diamonds: the paper" if has_paper else ""),
        fontsize=11,
        x=0.01,
        ha="left",
    )
    return figure


def _spread(runs: Sequence[MnistRun], column: str) -> Spread:
    return spread_of(run.columns.get(column) for run in runs)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _cell(spread: Spread) -> str:
    if math.isnan(spread.mean):
        return UNDEFINED
    return _number(spread.mean) + ("" if math.isnan(spread.sd) else f" ± {_number(spread.sd)}")


def _number(value: float, digits: int = 3) -> str:
    """Write a number without the zero before its point.

    Example:
        >>> _number(0.9984), _number(-0.02), _number(1.0)
        ('.998', '-.020', '1.000')
    """
    if math.isnan(value):
        return UNDEFINED
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def _names(found: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(found))
