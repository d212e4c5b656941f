"""Figures of a benchmark: time and memory against the size and the number of bags."""

import os
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
    save_figure,
    style_axes,
)


class GrowthCurve(NamedTuple):
    """Time and memory over sizes.

    Args:
        along: Quantity that grows: ``instances`` of a bag, or ``bags``.
        job: Measured work: ``train`` or ``predict``.
        sizes: The sizes.
        seconds: Seconds at each.
        gibibytes: Peak memory at each; NaN where unknown.
    """

    along: str
    job: str
    sizes: Sequence[int]
    seconds: Sequence[float]
    gibibytes: Sequence[float]


_TITLES = {
    "instances": ("One bag that grows", "Instances of the bag"),
    "bags": ("More bags", "Bags of 500 instances"),
}
_NOTHING = 2.0**-10
"""Smallest value that is drawn: a millisecond, or a mebibyte of memory."""

_JOBS = {"train": "forward and backward", "predict": "prediction"}


def growth_figure(curves: Sequence[GrowthCurve], title: str) -> Figure:
    """Draw time and memory on logarithmic axes; a dotted line grows as the size does."""
    columns = [along for along in _TITLES if any(c.along == along for c in curves)]
    figure = new_figure(4.6 * len(columns), 6.2)
    grid = figure.subplots(2, len(columns), squeeze=False)
    for column, along in enumerate(columns):
        shown = [c for c in curves if c.along == along]
        name, x_label = _TITLES[along]
        _draw(grid[0, column], shown, [c.seconds for c in shown])
        _draw(grid[1, column], shown, [c.gibibytes for c in shown])
        style_axes(grid[0, column], title=name, x_label=x_label, y_label="Seconds")
        style_axes(grid[1, column], title="", x_label=x_label, y_label="Peak memory (GiB)")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    # Beside the title: curves may be anywhere within the axes, and not every one has them all.
    shown_as = {line.get_label(): line for axes in grid[0] for line in axes.get_lines()}
    known = {label: shown_as[label] for label in _JOBS.values() if label in shown_as}
    figure.legend(
        [*known.values()],
        [*known],
        fontsize=SMALL_SIZE,
        frameon=False,
        loc="upper right",
        ncols=len(_JOBS),
    )
    return figure


def write_growth_figure(
    path: str | os.PathLike[str], curves: Sequence[GrowthCurve], title: str
) -> None:
    """Draw it and save it as PNG."""
    save_figure(growth_figure(curves, title), path)


def _draw(axes: Axes, curves: Sequence[GrowthCurve], values: Sequence[Sequence[float]]) -> None:
    for curve, heights in zip(curves, values, strict=True):
        colour = COLOURS[0 if curve.job == "predict" else 1]
        sizes, known = np.array(curve.sizes, float), np.array(heights, float)
        is_known = np.isfinite(known) & (known > _NOTHING)
        if not is_known.any():
            continue
        sizes, known = sizes[is_known], known[is_known]
        axes.plot(sizes, known, "o-", color=colour, ms=4, lw=1.6, label=_JOBS[curve.job])
        linear = known[-1] * sizes / sizes[-1]
        axes.plot(sizes, linear, ls=":", color=GREY, lw=1, zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes_shown = sorted({size for curve in curves for size in curve.sizes})
    axes.set_xticks(sizes_shown, [_short(size) for size in sizes_shown])
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    if high > 10 * low:  # powers of ten say enough
        axes.yaxis.set_minor_formatter(NullFormatter())


def _short(size: int) -> str:
    """Write thousands and millions short."""
    if size >= 1_000_000:
        return f"{size / 1_000_000:g} M"
    return f"{size / 1_000:g} k" if size >= 1_000 else str(size)
