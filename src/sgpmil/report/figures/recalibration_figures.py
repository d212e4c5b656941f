"""The figures of what validation slides bring: calibrated confidence, and prediction sets."""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import expected_calibration_error, reliability_curve
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import pooled_table
from sgpmil.evaluation.uncertainty.conformal import SetMetrics
from sgpmil.evaluation.uncertainty.temperature import Temperature
from sgpmil.report.figures.canvas import (
    COLOURS,
    GREY,
    SMALL_SIZE,
    TITLE_SIZE,
    new_figure,
    style_axes,
)
from sgpmil.shapes import Float, Int

__all__ = ["labelled_slides", "set_figure", "temperature_figure", "title_above"]


def temperature_figure(
    folds: Sequence[PredictionTable], temperatures: Sequence[Temperature], num_bins: int = 10
) -> Figure:
    """Draw accuracy against confidence before and after temperature scaling.

    Dots are bins of equal width with 95 % Wilson intervals, over the histogram of the
    confidence. The slides of all folds are drawn together, each scaled by its fold's temperature.

    Args:
        folds: Predictions of each fold's test slides; those without a label are left out.
        temperatures: Temperature of each fold, fitted on its validation slides.
        num_bins: Number of bins.

    Raises:
        PredictionError: There are no folds, no slide has a label, or the classes differ.
    """
    known = labelled_slides(pooled_table(folds))
    pairs = zip(folds, temperatures, strict=True)
    scaled = pooled_table([temperature.apply(fold) for fold, temperature in pairs])
    figure = new_figure(7.4, 4.8)
    grid = figure.add_gridspec(2, 2, height_ratios=(3.2, 1))
    left = np.floor(num_bins / known.num_classes) / num_bins if known.num_classes > 1 else 0.0
    heads = ("As predicted", f"Temperature {_told_range([t.value for t in temperatures])}")
    top: Axes | None = None
    low: Axes | None = None
    for column, (part, head) in enumerate(zip((known, scaled), heads, strict=True)):
        upper = figure.add_subplot(grid[0, column], sharex=top, sharey=top)
        lower = figure.add_subplot(grid[1, column], sharex=upper, sharey=low)
        top, low = top or upper, low or lower
        _draw_reliability(upper, lower, part, num_bins)
        ece = expected_calibration_error(part.probs, part.labels, num_bins)
        first = column == 0
        style_axes(upper, title=f"{head}: ECE {ece:.3f}", y_label="Accuracy" if first else "")
        style_axes(
            lower,
            x_label="Confidence in the predicted class",
            y_label="Slides" if first else "",
        )
        upper.tick_params(labelbottom=False, labelleft=first)
        lower.tick_params(labelleft=first)
        upper.set(xlim=(left, 1.0), ylim=(-0.02, 1.02))
    slides = (
        f"n = {len(known)}" if len(folds) == 1 else f"n = {len(known)}, {len(folds)} folds together"
    )
    title_above(figure, f"Reliability before and after temperature scaling ({slides})")
    return figure


def set_figure(metrics: Sequence[SetMetrics]) -> Figure:
    """Draw how often prediction sets hold the label, and how large they are, class by class.

    The intervals are 95 % Wilson intervals over the test slides; that other calibration slides
    would have given other sets comes on top.

    Args:
        metrics: Sets of the same slides to the same coverage, by one or more methods.

    Raises:
        PredictionError: There are no sets, none of a slide, or of different classes or coverages.
    """
    kinds = {(m.target, m.nominal, m.num_slides) for m in metrics}
    if len(kinds) != 1 or not metrics[0].num_slides:
        raise PredictionError(
            "Expected prediction sets of the same slides, classes and coverage to draw, but got "
            f"{len(kinds)} different ones. Draw the sets of one test set."
        )
    first = metrics[0]
    groups = ["all", *first.target.names]
    counts = np.concatenate([[first.num_slides], first.class_slides])
    figure = new_figure(max(5.0, 1.2 + 1.15 * len(groups)), 5.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.4, 1))
    upper.axhline(
        first.nominal, color="black", lw=1.2, ls="--", label=f"promised: {first.nominal:g}"
    )
    for number, own in enumerate(metrics):
        shift = 0.24 * (number - (len(metrics) - 1) / 2)
        x = np.arange(len(groups)) + shift
        colour, name = COLOURS[number % len(COLOURS)], own.method.upper()
        covered = np.concatenate([[own.class_covered.sum()], own.class_covered])
        shown = counts > 0
        share = covered[shown] / counts[shown]
        upper.errorbar(
            x[shown],
            share,
            yerr=_interval(covered[shown], counts[shown], share),
            fmt="os^D"[number % 4],
            ms=6,
            capsize=3,
            color=colour,
            label=f"{name}: coverage {own.coverage:.3f}, size {own.mean_size:.2f}",
        )
        sizes = np.concatenate([[own.mean_size], own.class_size])
        lower.bar(x, sizes, 0.22, color=colour)
    ticks = [f"{_wrapped(name)}\nn = {count}" for name, count in zip(groups, counts, strict=True)]
    lower.set_xticks(range(len(groups)), ticks, parse_math=False)
    lower.set_xlim(-0.6, len(groups) - 0.4)
    upper.set_ylim(top=1.01)
    lower.set_ylim(0, max(first.target.num_outputs, 2) + 0.05)
    lower.yaxis.set_major_locator(MaxNLocator(integer=True))
    style_axes(upper, y_label="Share of sets\nthat hold the label")
    style_axes(lower, y_label="Classes in a set,\nmean")
    for axes in (upper, lower):
        axes.tick_params(axis="x", length=0)
    figure.legend(fontsize=SMALL_SIZE, frameon=False, loc="outside lower left")
    title_above(figure, f"Prediction sets of {first.num_slides} slides, by class (95 % intervals)")
    return figure


def labelled_slides(table: PredictionTable) -> PredictionTable:
    """Keep the slides with a label, of which there must be one.

    Raises:
        PredictionError: No slide has a label.
    """
    known = table.labelled()
    if not len(known):
        raise PredictionError(
            "Expected slides with labels to draw, but got none. Add labels to the predictions."
        )
    return known


def title_above(figure: Figure, text: str) -> None:
    """Set a title above all panels, to the left."""
    figure.suptitle(text, fontsize=TITLE_SIZE, x=0.02, ha="left")


def _draw_reliability(upper: Axes, lower: Axes, table: PredictionTable, num_bins: int) -> None:
    curve = reliability_curve(table.probs, table.labels, num_bins)
    width = 1 / num_bins
    upper.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":")
    hits = np.rint(curve.accuracy * curve.count).astype(np.int64)
    upper.errorbar(
        curve.confidence,
        curve.accuracy,
        yerr=_interval(hits, curve.count, curve.accuracy),
        fmt="o-",
        ms=5,
        lw=1.4,
        elinewidth=1,
        capsize=2.5,
        color=COLOURS[0],
    )
    lower.bar(curve.bin_index * width, curve.count, width, align="edge", color=COLOURS[0], lw=0)
    lower.yaxis.set_major_locator(MaxNLocator(3, integer=True))


def _interval(
    hits: Int[np.ndarray, " K"], counts: Int[np.ndarray, " K"], shares: Float[np.ndarray, " K"]
) -> Float[np.ndarray, "2 K"]:
    """Give the lengths of 95 % Wilson intervals below and above the shares."""
    from scipy.stats import binomtest

    ends = [
        binomtest(int(hit), int(count)).proportion_ci(method="wilson")
        for hit, count in zip(hits, counts, strict=True)
    ]
    low, high = np.array([(end.low, end.high) for end in ends]).T
    # Rounding may carry an end past the share itself, which an error bar does not allow.
    return np.maximum(np.stack([shares - low, high - shares]), 0.0)


def _told_range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _wrapped(name: str) -> str:
    return "\n".join(wrap(name, 13, max_lines=2, placeholder="…"))
