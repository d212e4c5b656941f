"""Figures of studies: curves with intervals, differences with intervals, bounds of models."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from sgpmil.report.figures.canvas import (
    COLOURS,
    GREY,
    SMALL_SIZE,
    new_figure,
    plain_words,
    style_axes,
)

_STYLES = ("-", "--", ":")


class Curve(NamedTuple):
    """A measure over values, with intervals.

    Args:
        name: Name of the curve; curves of one name share a colour.
        values: Values of the horizontal axis.
        means: Means of the measure.
        low: Lower ends of the intervals; NaN where there are none.
        high: Upper ends.
    """

    name: str
    values: Sequence[float]
    means: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


class Panel(NamedTuple):
    """Axes with curves.

    Args:
        title: Title of the panel.
        x_label: Words of the horizontal axis.
        curves: The curves.
        is_log: Whether the horizontal axis is logarithmic.
        chance: Value that is drawn as a line; None draws none.
    """

    title: str
    x_label: str
    curves: Sequence[Curve]
    is_log: bool = False
    chance: float | None = None


def curves_figure(panels: Sequence[Panel], title: str) -> Figure:
    """Draw panels of curves side by side, with one legend."""
    figure = new_figure(1.6 + 3.6 * len(panels), 4.0)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, names)
    figure.suptitle(plain_words(title), fontsize=11, x=0.01, ha="left")
    lines = {
        str(line.get_label()): line
        for axes in grid
        for line in axes.get_lines()
        if line.get_label() in names
    }
    figure.legend(
        [lines[name] for name in names if name in lines],
        [plain_words(name) for name in names if name in lines],
        loc="outside right center",
        fontsize=SMALL_SIZE,
        frameon=False,
    )
    return figure


def _draw_panel(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    values = sorted({float(value) for curve in panel.curves for value in curve.values})
    if panel.chance is not None:
        axes.axhline(panel.chance, color=GREY, lw=0.8, ls=":")
    for curve in panel.curves:
        number = names.index(curve.name)
        # Beside one another, so that intervals can be told apart.
        offset = (number - (len(names) - 1) / 2) / max(1, len(names))
        x = _moved(np.array(curve.values, dtype=float), values, offset, panel.is_log)
        means = np.array(curve.means)
        reach = np.nan_to_num([means - np.array(curve.low), np.array(curve.high) - means])
        axes.errorbar(
            x,
            means,
            yerr=np.maximum(reach, 0),
            color=COLOURS[number % len(COLOURS)],
            ls=_STYLES[number // len(COLOURS) % len(_STYLES)],
            lw=2.0 if number == 0 else 1.1,
            elinewidth=0.8,
            marker="o",
            ms=4 if number == 0 else 2.5,
        )[0].set_label(curve.name)
    if panel.is_log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(values, [f"{value:g}" for value in values])
    style_axes(axes, title=panel.title, x_label=panel.x_label)


def _moved(x: np.ndarray, values: Sequence[float], offset: float, is_log: bool) -> np.ndarray:
    """Move points sideways by a share of the least distance between values."""
    if len(values) < 2:
        return x + 0.2 * offset * (abs(x) if is_log else 1)
    if is_log:
        step = float(np.diff(np.log(values)).min())
        return np.asarray(np.exp(np.log(x) + 0.2 * offset * step))
    return x + 0.2 * offset * float(np.diff(values).min())


class Difference(NamedTuple):
    """A mean difference with its interval.

    Args:
        name: Name of the row.
        group: Group of the row; rows of a group are adjacent.
        mean: Mean difference.
        low: Lower end of the interval; NaN where there is none.
        high: Upper end.
    """

    name: str
    group: str
    mean: float
    low: float
    high: float


def differences_figure(
    panels: Sequence[tuple[str, Sequence[Difference]]], title: str, x_label: str
) -> Figure:
    """Draw rows of differences, a panel a measure; rows are alike in all panels.

    Args:
        panels: Title and rows of each panel.
        title: Title of the figure.
        x_label: Words of the horizontal axes.
    """
    names = list(dict.fromkeys((row.group, row.name) for _, rows in panels for row in rows))
    figure = new_figure(2.6 + 3.0 * len(panels), 1.2 + 0.2 * len(names))
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (name, rows) in zip(grid, panels, strict=True):
        axes.axvline(0, color=GREY, lw=0.8)
        groups = list(dict.fromkeys(group for group, _ in names))
        for row in rows:
            y = names.index((row.group, row.name))
            colour = COLOURS[groups.index(row.group) % len(COLOURS)]
            axes.plot([row.low, row.high], [y, y], color=colour, lw=1.4)
            axes.plot([row.mean], [y], "o", color=colour, ms=4)
        style_axes(axes, title=name, x_label=x_label)
    first = grid[0]
    labels = [plain_words(f"{group}: {name}") for group, name in names]
    first.set_yticks(range(len(names)), labels, fontsize=SMALL_SIZE)
    first.set_ylim(len(names) - 0.4, -0.6)
    figure.suptitle(plain_words(title), fontsize=11, x=0.01, ha="left")
    return figure


class BoundRow(NamedTuple):
    """Bound and found gradient norm of a path, a value a model.

    Args:
        name: Name of the path.
        group: Kind of model.
        bounds: Bound of each model.
        found: Largest gradient norm found of each model; empty where none was looked for.
    """

    name: str
    group: str
    bounds: Sequence[float]
    found: Sequence[float] = ()


def bounds_figure(rows: Sequence[BoundRow], title: str) -> Figure:
    """Draw the bounds of paths as bars of factors of ten, with the largest gradients found."""
    figure = new_figure(7.2, 1.4 + 0.42 * len(rows))
    axes = figure.add_subplot()
    groups = list(dict.fromkeys(row.group for row in rows))
    for y, row in enumerate(rows):
        colour = COLOURS[groups.index(row.group) % len(COLOURS)]
        axes.plot(row.bounds, [y] * len(row.bounds), "|", color=colour, ms=12, mew=1.2)
        axes.plot([float(np.mean(row.bounds))], [y], "D", color=colour, ms=5)
        if row.found:
            axes.plot(row.found, [y] * len(row.found), ".", color="black", ms=4, alpha=0.7)
            reach = [max(row.found), min(row.bounds)]
            axes.plot(reach, [y, y], color=GREY, lw=0.7, ls=":")
    axes.set_yticks(
        range(len(rows)),
        [plain_words(f"{row.group}, {row.name}" if row.group else row.name) for row in rows],
        fontsize=SMALL_SIZE,
    )
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("log")
    for marker, label in (("D", "bound, mean"), ("|", "bound of a model")):
        axes.plot([], [], marker, color=GREY, label=label)
    if any(row.found for row in rows):
        axes.plot([], [], ".", color="black", label="largest gradient found")
    axes.legend(fontsize=SMALL_SIZE, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    style_axes(axes, title=plain_words(title), x_label="Change of the output per change of input")
    return figure


class Share(NamedTuple):
    """Number of cases out of all, of a row and a group.

    Args:
        row: Name of the row.
        group: Name of the column.
        cases: Number of cases.
        total: Number of all.
    """

    row: str
    group: str
    cases: int
    total: int


def shares_figure(shares: Sequence[Share], title: str) -> Figure:
    """Draw a grid of shares: rows and groups, the number of cases in each cell."""
    rows = list(dict.fromkeys(share.row for share in shares))
    groups = list(dict.fromkeys(share.group for share in shares))
    values = np.full((len(rows), len(groups)), np.nan)
    figure = new_figure(3.2 + 1.1 * len(groups), 1.2 + 0.28 * len(rows))
    axes = figure.add_subplot()
    for share in shares:
        place = rows.index(share.row), groups.index(share.group)
        if share.total:
            values[place] = share.cases / share.total
        axes.text(
            place[1],
            place[0],
            f"{share.cases} / {share.total}",
            ha="center",
            va="center",
            fontsize=SMALL_SIZE,
            color="white" if share.cases > 0.55 * max(1, share.total) else "black",
        )
    axes.imshow(values, cmap="Reds", vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(range(len(rows)), [plain_words(row) for row in rows], fontsize=SMALL_SIZE)
    axes.set_xticks(range(len(groups)), [plain_words(group) for group in groups])
    style_axes(axes, title=plain_words(title))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure
