"""The figure of a comparison: the folds of each run, metric by metric."""

import math
import textwrap
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from sgpmil.evaluation.comparison.result import Comparison
from sgpmil.evaluation.comparison.tables import p_value
from sgpmil.evaluation.metrics import Metric, get_metric
from sgpmil.report.figures.canvas import (
    COLOURS,
    GREY,
    LABEL_SIZE,
    SMALL_SIZE,
    TITLE_SIZE,
    new_figure,
    plain_words,
    save_figure,
    style_axes,
)
from sgpmil.shapes import Float

_MAX_WIDTH = 11.0
"""Width in inches beyond which metrics go to another row."""

_PAIR_COLOUR = "#c8c8c8"


def comparison_figure(comparison: Comparison) -> Figure:
    """Draw a box plot a metric, the reference first.

    Dots are folds; a grey line joins the same fold in neighbouring runs, so that paired
    differences can be seen. Above each run stands the adjusted p-value of the test across folds
    that marks the tables, with a star where it is below the level.
    """
    num_metrics, num_runs = len(comparison.metrics), len(comparison.runs)
    panel_width = max(2.3, 0.9 + 0.48 * num_runs)
    num_columns = min(num_metrics, max(1, int(_MAX_WIDTH / panel_width)))
    num_rows = math.ceil(num_metrics / num_columns)
    longest = max(len(run) for run in comparison.runs)
    is_tilted = longest * num_runs > 24
    width = max(panel_width * num_columns, 4.6)
    height = (2.4 + (0.055 * min(longest, 24) if is_tilted else 0)) * num_rows + 0.7
    figure = new_figure(width, height, pad=0.06)
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    for position, axes in enumerate(grid.flat):
        if position < num_metrics:
            _draw_metric(axes, comparison, comparison.metrics[position], is_tilted)
        else:
            axes.set_visible(False)
    num_folds = len(comparison.folds)
    folds = f"{num_folds} folds" if num_folds > 1 else "one fold"
    title = f"{comparison.reference} and {num_runs - 1} other{'s' * (num_runs > 2)}, {folds}"
    figure.suptitle(plain_words(title), fontsize=TITLE_SIZE, x=0.01, ha="left")
    legend = "\n".join(textwrap.wrap(_legend(comparison), int(14 * width)))
    figure.supxlabel(plain_words(legend), fontsize=SMALL_SIZE, x=0.01, ha="left", color=GREY)
    return figure


def write_comparison_figure(folder: Path, comparison: Comparison) -> Path:
    """Draw the comparison into ``comparison.png``.

    Returns:
        The file written.
    """
    path = folder / "comparison.png"
    save_figure(comparison_figure(comparison), path)
    return path


def _draw_metric(axes: Axes, comparison: Comparison, metric: str, is_tilted: bool) -> None:
    values = np.array([comparison.summary(run, metric).values for run in comparison.runs])
    num_folds = len(comparison.folds)
    places = np.arange(len(values))
    # Each fold has its own place beside the middle, so that equal values hide no other.
    aside = np.linspace(-0.13, 0.13, num_folds) if num_folds > 1 else np.zeros(1)
    dots = places[:, None] + aside
    axes.plot(dots, values, color=_PAIR_COLOUR, lw=0.7, zorder=1)
    defined = [row[~np.isnan(row)] for row in values]
    boxes = axes.boxplot(
        defined,
        positions=places,
        widths=0.52,
        showfliers=False,
        patch_artist=True,
        medianprops={"color": "black", "lw": 1.4},
        whiskerprops={"color": GREY},
        capprops={"color": GREY},
        zorder=2,
    )
    for place, box in enumerate(boxes["boxes"]):
        colour = COLOURS[place % len(COLOURS)]
        box.set(facecolor=to_rgba(colour, 0.28), edgecolor=colour)
        axes.scatter(dots[place], values[place], s=15, color=colour, ec="white", lw=0.5, zorder=3)
    _draw_p_values(axes, comparison, metric, values)
    found = get_metric(metric)
    direction = "" if found.better == "neither" else f"{found.better} is better"
    style_axes(axes, title=_title(found), y_label=direction)
    axes.yaxis.label.set_fontsize(SMALL_SIZE)
    axes.title.set_fontsize(LABEL_SIZE)
    axes.set_xlim(-0.6, len(values) - 0.4)
    axes.set_xticks(places, comparison.runs, fontsize=SMALL_SIZE, parse_math=False)
    if is_tilted:
        for label in axes.get_xticklabels():
            label.set(rotation=35, ha="right", rotation_mode="anchor")
    axes.get_xticklabels()[0].set_fontweight("bold")


def _draw_p_values(
    axes: Axes, comparison: Comparison, metric: str, values: Float[np.ndarray, "R K"]
) -> None:
    for place, run in enumerate(comparison.runs):
        test = comparison.test(run, metric)
        if test is None or np.isnan(values[place]).all():
            continue
        mark = "★ " if comparison.is_marked(run, metric) else ""
        mark = "☆ " if comparison.is_behind(run, metric) else mark
        p = test.marking_holm
        text = "<0.001" if p < 0.001 else p_value(p)
        axes.annotate(
            mark + text,
            (place, float(np.nanmax(values[place]))),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=SMALL_SIZE - 1,
            color="black" if mark else GREY,
            fontweight="bold" if mark else "normal",
        )
    axes.margins(y=0.14)


def _legend(comparison: Comparison) -> str:
    if not comparison.tests:
        return ""
    return (
        f"Dots: folds, joined by a line. Numbers: p of whether {comparison.reference} is better "
        f"({comparison.marking}); ★ p < {comparison.alpha:g}; "
        f"☆ it is worse, p < {comparison.alpha:g} of the test in the other direction."
    )


def _title(metric: Metric) -> str:
    # A panel is narrow.
    return metric.name.replace("instance ", "inst. ")
