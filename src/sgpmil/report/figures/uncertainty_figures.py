"""The figures of uncertainty: who errs, who is kept, and what calibration brings."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import FoldsUncertainty, pooled_table
from sgpmil.evaluation.uncertainty.measures import (
    CorrectVersusWrong,
    UncertaintyMeasure,
    correct_versus_wrong,
    risk_coverage,
    selective_prediction,
    uncertainty,
    wrong_slides,
)
from sgpmil.report.figures.canvas import (
    COLOURS,
    GREY,
    LABEL_SIZE,
    SMALL_SIZE,
    new_figure,
    save_figure,
    style_axes,
)
from sgpmil.report.figures.recalibration_figures import (
    labelled_slides,
    set_figure,
    temperature_figure,
    title_above,
)
from sgpmil.shapes import Float

__all__ = [
    "correct_wrong_figure",
    "risk_coverage_figure",
    "set_figure",
    "temperature_figure",
    "write_uncertainty_figures",
]

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
    Above stands Welch's two-sided p, with a star below 0.05.

    Args:
        table: Predictions; slides without a label are left out.
        measures: What to draw, a panel each; those that the predictions lack are left out.

    Raises:
        PredictionError: No slide has a label, or no measure is there.
    """
    known = labelled_slides(table)
    shown = _present(known, measures)
    figure = new_figure(0.4 + 2.9 * len(shown), 4.2)
    wrong = wrong_slides(known)
    for column, measure in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), column + 1)
        values = uncertainty(known, measure)
        _draw_groups(axes, values[~wrong], values[wrong])
        _draw_test(axes, correct_versus_wrong(known, measure), float(values.max()))
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
        measures: What to order by, a line each; those that the predictions lack are left out.

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

    Args:
        folder: Where to write; made where it is missing.
        folds: Predictions of each fold's test slides.
        analysis: Their analysis.

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


def _draw_test(axes: Axes, groups: CorrectVersusWrong, highest: float) -> None:
    low, high = axes.get_ylim()
    reach = (high - low) or 1.0
    foot = highest + 0.05 * reach
    top = foot + 0.03 * reach
    axes.plot([0, 0, 1, 1], [foot, top, top, foot], color=GREY, lw=1)
    p = groups.p_two_sided
    if np.isnan(p):
        told = "no test"
    else:
        told = "two-sided p < 0.001" if p < 0.001 else f"two-sided p = {p:.3f}"
        told += " *" if p < 0.05 else ", n.s."
    axes.text(0.5, top + 0.01 * reach, told, ha="center", va="bottom", fontsize=LABEL_SIZE)
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
