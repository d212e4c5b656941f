"""Figures of uncertainty: errors against confidence, temperature scaling, prediction sets."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import expected_calibration_error, reliability_curve
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import FoldsUncertainty, pooled_table
from sgpmil.evaluation.uncertainty.conformal import SetMetrics
from sgpmil.evaluation.uncertainty.error_detection import error_detection
from sgpmil.evaluation.uncertainty.measures import (
    CorrectVersusWrong,
    UncertaintyMeasure,
    correct_versus_wrong,
    risk_coverage,
    selective_prediction,
    uncertainty,
    wrong_slides,
)
from sgpmil.evaluation.uncertainty.temperature import Temperature
from sgpmil.notebook import counted
from sgpmil.report.figures.canvas import (
    COLOURS,
    GREY,
    LABEL_SIZE,
    SMALL_SIZE,
    TITLE_SIZE,
    new_figure,
    save_figure,
    style_axes,
)
from sgpmil.shapes import Float, Int

_CORRECT, _WRONG = COLOURS[0], COLOURS[1]

_FEW = 150
"""With no more slides in a group, each is drawn."""

_QUARTILES = 4
"""With fewer slides in a group there is no box, only they."""

_NAMES: dict[UncertaintyMeasure, str] = {
    "std": "standard deviation, predicted class",
    "mean_std": "standard deviation, mean over classes",
    "entropy": "entropy",
    "expected_entropy": "expected entropy",
    "mutual_information": "mutual information",
    "max_probability": "1 − largest probability",
}

_IN_NATS = ("entropy", "expected_entropy", "mutual_information")


def correct_wrong_figure(
    table: PredictionTable,
    measures: Sequence[UncertaintyMeasure] = ("std", "entropy", "mutual_information"),
) -> Figure:
    """Draw the uncertainty of correct and of wrong predictions as box plots.

    Boxes are quartiles with the median, whiskers reach to the last slide within 1.5 box lengths.
    Above stands the p of Welch's one-sided test that wrong predictions are less certain. It has a
    star below 0.05, unless the interval of the error AUROC, which holds for few errors, says that
    this may be chance.

    Args:
        table: Predictions; slides without a label are left out.
        measures: Measures to draw, a panel each; those that the predictions lack are left out.

    Raises:
        PredictionError: No slide has a label, or no measure is there.
    """
    known = labelled_slides(table)
    shown = _present(known, measures)
    figure = new_figure(0.4 + 2.9 * len(shown), 4.2)
    for column, measure in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), column + 1)
        draw_correct_wrong(axes, known, measure)
        unit = " (nats)" if measure in _IN_NATS else ""
        style_axes(axes, y_label=f"{_NAMES[measure].capitalize()}{unit}")
        axes.tick_params(axis="x", labelsize=LABEL_SIZE, length=0)
    gap = " " if len(shown) > 1 else "\n"
    title_above(figure, f"Uncertainty of correct{gap}and wrong predictions")
    return figure


def risk_coverage_figure(
    table: PredictionTable,
    measures: Sequence[UncertaintyMeasure] = (
        "std",
        "entropy",
        "mutual_information",
        "max_probability",
    ),
) -> Figure:
    """Draw the errors among the slides kept, as fewer uncertain ones are refused.

    Args:
        table: Predictions; slides without a label are left out.
        measures: Measures to order slides by, a line each; those that the predictions lack are
            left out.

    Raises:
        PredictionError: No slide has a label, or no measure is there.
    """
    known = labelled_slides(table)
    wrong = wrong_slides(known)
    figure = new_figure(5.4, 5.2)
    axes = figure.add_subplot()
    for number, measure in enumerate(_present(known, measures)):
        found = selective_prediction(known, measure)
        axes.plot(
            found.curve.coverage,
            found.curve.risk,
            color=COLOURS[number % 6],
            ls=("-", "--", "-.")[number % 3],
            lw=1.8,
            label=f"{_NAMES[measure]}: {found.aurc:.3f}",
        )
    oracle = risk_coverage(wrong.astype(np.float64), wrong)
    axes.plot(
        oracle.coverage,
        oracle.risk,
        color="black",
        lw=1.2,
        zorder=1.5,
        label=f"oracle: {oracle.aurc:.3f}",
    )
    error = float(wrong.mean())
    axes.axhline(error, color=GREY, lw=1.2, ls=":", label=f"random: {error:.3f}")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=-0.02 * axes.get_ylim()[1])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    style_axes(
        axes,
        title=f"Errors among the most certain slides (n = {len(known)})",
        x_label="Coverage: slides kept, the most certain first",
        y_label="Risk: errors among them",
    )
    legend = figure.legend(
        fontsize=SMALL_SIZE, frameon=False, loc="outside lower left", ncols=2, title="AURC"
    )
    legend.set_alignment("left")
    legend.get_title().set_fontsize(SMALL_SIZE)
    return figure


def write_uncertainty_figures(
    folder: Path, folds: Sequence[PredictionTable], analysis: FoldsUncertainty
) -> list[Path]:
    """Draw what is known of the uncertainty of a run, the slides of its folds together.

    Returns:
        The files written: temperature and prediction sets only where every fold has validation
        slides.

    Raises:
        PredictionError: No slide has a label, or the classes differ.
    """
    table = pooled_table(folds)
    figures = {
        "uncertainty.png": correct_wrong_figure(table),
        "risk-coverage.png": risk_coverage_figure(table),
    }
    temperatures = [fold.scaled.temperature for fold in analysis.folds if fold.scaled is not None]
    if len(temperatures) == len(folds):
        figures["temperature.png"] = temperature_figure(folds, temperatures)
    if analysis.pooled_sets:
        figures["prediction-sets.png"] = set_figure(analysis.pooled_sets)
    for name, figure in figures.items():
        save_figure(figure, folder / name)
    return [folder / name for name in figures]


def draw_correct_wrong(axes: Axes, known: PredictionTable, measure: UncertaintyMeasure) -> None:
    """Draw the uncertainty of correct and of wrong predictions, all labelled, into axes."""
    wrong, values = wrong_slides(known), uncertainty(known, measure)
    _draw_groups(axes, values[~wrong], values[wrong])
    is_shown = error_detection(known, measure).is_shown
    _draw_test(axes, correct_versus_wrong(known, measure), is_shown, float(values.max()))


def _draw_groups(
    axes: Axes, correct: Float[np.ndarray, " k"], wrong: Float[np.ndarray, " w"]
) -> None:
    for position, (values, colour) in enumerate(((correct, _CORRECT), (wrong, _WRONG))):
        if not len(values):
            continue
        few = len(values) <= _FEW
        if few:
            # The places are spread evenly, not drawn: the figure is the same every time.
            spread = 0.36 * ((np.argsort(np.argsort(values)) * 0.618 + 0.5) % 1 - 0.5)
            axes.scatter(position + spread, values, s=11, color=colour, alpha=0.65, lw=0, zorder=3)
        if len(values) < _QUARTILES:
            continue
        axes.boxplot(
            [values],
            positions=[position],
            widths=0.55,
            patch_artist=True,
            showfliers=not few,
            boxprops={"facecolor": f"{colour}33", "edgecolor": colour, "linewidth": 1.4},
            whiskerprops={"color": colour, "linewidth": 1.2},
            capprops={"color": colour, "linewidth": 1.2},
            medianprops={"color": colour, "linewidth": 2.4},
            flierprops={"marker": ".", "markeredgecolor": colour, "markersize": 3},
        )
    labels = [
        f"{name}\nn = {len(values)}" for name, values in (("correct", correct), ("wrong", wrong))
    ]
    axes.set_xticks([0, 1], labels)
    axes.set_xlim(-0.6, 1.6)


def _draw_test(axes: Axes, groups: CorrectVersusWrong, is_shown: bool, highest: float) -> None:
    low, high = axes.get_ylim()
    reach = (high - low) or 1.0
    foot = highest + 0.05 * reach
    top = foot + 0.03 * reach
    axes.plot([0, 0, 1, 1], [foot, top, top, foot], color=GREY, lw=1)
    p = groups.p_value
    if np.isnan(p):
        text = "no test"
    else:
        text = "one-sided p < 0.001" if p < 0.001 else f"one-sided p = {p:.3f}"
        text += ", n.s." if p >= 0.05 else " *" if is_shown else "\n(may be chance)"
    axes.text(0.5, top + 0.01 * reach, text, ha="center", va="bottom", fontsize=LABEL_SIZE)
    axes.set_ylim(min(low, 0.0) if low > -0.05 * reach else low, top + 0.12 * reach)


def _present(
    table: PredictionTable, measures: Sequence[UncertaintyMeasure]
) -> list[UncertaintyMeasure]:
    present = [m for m in measures if not np.isnan(uncertainty(table, m)).any()]
    if not present:
        raise PredictionError(
            f"Expected predictions with {' or '.join(measures)}, but they carry none of these. "
            "Draw entropy or max_probability."
        )
    return present


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
    heads = ("As predicted", f"Temperature {_range_text([t.value for t in temperatures])}")
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
    slides = counted(first.num_slides, "slide")
    title_above(figure, f"Prediction sets of {slides}, by class (95 % intervals)")
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
    """Compute the lengths of 95 % Wilson intervals below and above the shares."""
    from scipy.stats import binomtest

    ends = [
        binomtest(int(hit), int(count)).proportion_ci(method="wilson")
        for hit, count in zip(hits, counts, strict=True)
    ]
    low, high = np.array([(end.low, end.high) for end in ends]).T
    # Rounding may carry an end past the share itself, which an error bar does not allow.
    return np.maximum(np.stack([shares - low, high - shares]), 0.0)


def _range_text(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _wrapped(name: str) -> str:
    return "\n".join(wrap(name, 13, max_lines=2, placeholder="…"))
