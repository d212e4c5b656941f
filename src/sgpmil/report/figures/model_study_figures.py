"""Figures of a study of models: box plots with significance bars, reliability, uncertainty."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import adaptive_calibration_error, reliability_curve
from sgpmil.evaluation.prediction_table import PredictionTable
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
from sgpmil.report.figures.curves import draw_reliability
from sgpmil.report.figures.uncertainty_figures import draw_correct_wrong

__all__ = ["BoxPanel", "box_figure", "reliability_grid", "save_figure", "uncertainty_grid"]

_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class BoxPanel:
    """A metric of several models over folds.

    Args:
        title: Name of the metric.
        values: Value in each fold by model, NaN where undefined; the reference last.
        p_values: P-value of whether the reference is better, by model.
        published: Published mean by model, where there is one.
    """

    title: str
    values: Mapping[str, Sequence[float]]
    p_values: Mapping[str, float]
    published: Mapping[str, float]


def box_figure(panels: Sequence[BoxPanel], title: str, *, alpha: float = 0.05) -> Figure:
    """Draw a box plot of the folds for each metric, with bars over significant differences.

    A bar joins the reference, which stands last, with each model that it is better than. Dots are
    folds, and a diamond is the published mean.

    Args:
        panels: The metrics.
        title: Title of the figure.
        alpha: Level of significance.

    Raises:
        PredictionError: There is no metric.
    """
    if not panels:
        raise PredictionError("Expected at least one metric to draw, but got none. Name one.")
    num_models = max(len(panel.values) for panel in panels)
    figure = new_figure(max(3.2, 0.9 + 0.44 * num_models) * len(panels), 5.0, pad=0.06)
    has_published = any(panel.published for panel in panels)
    for column, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), column + 1)
        _draw_boxes(axes, panel)
        ticks = axes.get_yticks()
        _draw_bars(axes, panel, alpha)
        axes.set_yticks([tick for tick in ticks if axes.get_ylim()[0] <= tick <= 1])
        style_axes(axes, title=panel.title)
        axes.tick_params(axis="x", length=0)
    figure.suptitle(plain_words(title), fontsize=TITLE_SIZE, x=0.01, ha="left")
    legend = f"Dots: folds. ★: one-sided paired t-test across folds, p < {alpha:g}."
    if has_published:
        legend += " Diamonds: means of the paper."
    figure.supxlabel(legend, fontsize=SMALL_SIZE, x=0.01, ha="left", color=GREY)
    return figure


def _draw_boxes(axes: Axes, panel: BoxPanel) -> None:
    for place, (model, values) in enumerate(panel.values.items()):
        known = np.array([value for value in values if not math.isnan(value)])
        colour = COLOURS[1] if place == len(panel.values) - 1 else COLOURS[0]
        if len(known) > 1:
            axes.boxplot(
                [known],
                positions=[place],
                widths=0.6,
                showfliers=False,
                patch_artist=True,
                boxprops={"facecolor": to_rgba(colour, 0.25), "edgecolor": colour},
                medianprops={"color": colour, "lw": 2},
                whiskerprops={"color": colour},
                capprops={"color": colour},
            )
        aside = np.linspace(-0.16, 0.16, len(known)) if len(known) > 1 else np.zeros(len(known))
        axes.scatter(place + aside, known, s=9, color=colour, alpha=0.75, lw=0, zorder=3)
        if model in panel.published:
            axes.scatter(
                [place],
                [panel.published[model]],
                marker="D",
                s=26,
                facecolor="white",
                edgecolor="black",
                lw=1.1,
                zorder=4,
            )
    axes.set_xticks(range(len(panel.values)), list(panel.values), parse_math=False)
    for label in axes.get_xticklabels():
        label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.6, len(panel.values) - 0.4)


def _draw_bars(axes: Axes, panel: BoxPanel, alpha: float) -> None:
    """Stack a bar for each significant difference above the boxes, the shortest lowest."""
    low, high = axes.get_ylim()
    step = 0.055 * (high - low)
    names = list(panel.values)
    last = len(names) - 1
    height = high
    for place in range(last - 1, -1, -1):
        if not panel.p_values.get(names[place], math.nan) < alpha:
            continue
        axes.plot(
            [place, place, last, last],
            [height, height + 0.3 * step, height + 0.3 * step, height],
            color="black",
            lw=0.9,
            clip_on=False,
        )
        middle = (place + last) / 2
        axes.text(middle, height + 0.2 * step, "★", ha="center", va="bottom", fontsize=7)
        height += step
    axes.set_ylim(low, max(high, height + 0.4 * step))


def reliability_grid(models: Mapping[str, PredictionTable], num_bins: int = 10) -> Figure:
    """Draw the reliability of several models, a panel each.

    Args:
        models: Predictions by model; slides without a label are left out.
        num_bins: Number of bins of equal width.

    Raises:
        PredictionError: There is no model, or none of its slides has a label.
    """
    known = _labelled(models)
    columns = min(_COLUMNS, len(known))
    rows = math.ceil(len(known) / columns)
    figure = new_figure(3.3 * columns, 3.3 * rows + 0.4)
    for place, (model, table) in enumerate(known.items()):
        axes = figure.add_subplot(rows, columns, place + 1)
        draw_reliability(axes, reliability_curve(table.probs, table.labels, num_bins), legend=False)
        error = adaptive_calibration_error(table.probs, table.labels, num_bins)
        style_axes(axes, title=plain_words(f"{model}: ACE {error:.3f}"))
        axes.title.set_fontsize(LABEL_SIZE)
        axes.set_xlim(np.floor(num_bins / table.num_classes) / num_bins, 1.0)
        if place % columns == 0:
            axes.set_ylabel("Accuracy", fontsize=LABEL_SIZE)
        if place >= len(known) - columns:
            axes.set_xlabel("Confidence in the predicted class", fontsize=LABEL_SIZE)
    title = "Reliability of the slides of all folds together, with 95 % intervals"
    figure.suptitle(title, fontsize=TITLE_SIZE, x=0.01, ha="left")
    return figure


def uncertainty_grid(models: Mapping[str, PredictionTable]) -> Figure:
    """Draw the uncertainty of correct and wrong predictions of several models, a panel each.

    It is the standard deviation over samples of the probability of the predicted class.

    Args:
        models: Predictions by model, of models that give samples.

    Raises:
        PredictionError: There is no model, or none of its slides has a label.
    """
    known = _labelled(models)
    columns = min(_COLUMNS, len(known))
    rows = math.ceil(len(known) / columns)
    figure = new_figure(3.1 * columns, 4.0 * rows + 0.3)
    for place, (model, table) in enumerate(known.items()):
        axes = figure.add_subplot(rows, columns, place + 1)
        draw_correct_wrong(axes, table, "std")
        style_axes(axes, title=plain_words(model))
        axes.title.set_fontsize(LABEL_SIZE)
        if place % columns == 0:
            axes.set_ylabel("Standard deviation of the\npredicted class", fontsize=LABEL_SIZE)
        axes.tick_params(axis="x", labelsize=LABEL_SIZE, length=0)
    title = "Uncertainty of correct and wrong predictions"
    figure.suptitle(title, fontsize=TITLE_SIZE, x=0.01, ha="left")
    return figure


def _labelled(models: Mapping[str, PredictionTable]) -> dict[str, PredictionTable]:
    known = {model: table.labelled() for model, table in models.items()}
    known = {model: table for model, table in known.items() if len(table)}
    if not known:
        raise PredictionError(
            "Expected predictions of slides with a label to draw, but got none. Add labels."
        )
    return known
