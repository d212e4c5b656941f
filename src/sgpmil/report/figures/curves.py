"""Curves of a run: reliability, ROC, precision and recall; its confusion matrix."""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import (
    ReliabilityCurve,
    adaptive_calibration_error,
    expected_calibration_error,
    reliability_curve,
)
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import RocCurve, auroc, average_precision, roc_curve
from sgpmil.report.figures.canvas import (
    COLOURS,
    GREY,
    LABEL_SIZE,
    SMALL_SIZE,
    TITLE_SIZE,
    new_figure,
    plain_words,
    style_axes,
)
from sgpmil.shapes import Bool, Float, Int

_NORMAL_95 = 1.959963984540054


def reliability_figure(table: PredictionTable, num_bins: int = 10) -> Figure:
    """Draw accuracy against confidence, above the histogram of the confidence.

    Dots are the bins of `reliability_curve` with 95 % Wilson intervals; a calibrated model's lie
    on the diagonal.

    Args:
        table: Predictions; slides without a label are left out.
        num_bins: Number of bins of equal width.

    Raises:
        PredictionError: No slide has a label.
    """
    known = table.labelled()
    _require_slides([known])
    probs, labels = known.probs, known.labels
    curve = reliability_curve(probs, labels, num_bins)
    ece = expected_calibration_error(probs, labels, num_bins)
    ace = adaptive_calibration_error(probs, labels, num_bins)

    figure = new_figure(4.8, 5.6)
    grid = figure.add_gridspec(2, 1, height_ratios=(3.2, 1))
    upper = figure.add_subplot(grid[0])
    lower = figure.add_subplot(grid[1], sharex=upper)
    draw_reliability(upper, curve)
    width = 1 / num_bins
    lower.bar(curve.bin_index * width, curve.count, width, align="edge", color=COLOURS[0], lw=0)
    accuracy = float((probs.argmax(axis=1) == labels).mean())
    confidence = float(probs.max(axis=1).mean())
    lower.axvline(accuracy, color=COLOURS[1], lw=1.5, label=f"accuracy {accuracy:.2f}")
    lower.axvline(confidence, color="black", lw=1.5, ls="--", label=f"confidence {confidence:.2f}")
    lower.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    _legend_above(lower)

    title = f"Reliability (n = {len(known)})\nECE {ece:.3f}, ACE {ace:.3f}, {num_bins} bins"
    figure.suptitle(title, fontsize=TITLE_SIZE, x=0.02, ha="left")
    style_axes(upper, y_label="Accuracy")
    style_axes(lower, x_label="Confidence in the predicted class", y_label="Slides")
    upper.tick_params(labelbottom=False)
    lower.set_xlim(np.floor(num_bins / table.num_classes) / num_bins, 1.0)
    return figure


def roc_figure(tables: Sequence[PredictionTable]) -> Figure:
    """Draw the ROC curve of each fold (thin) and their mean (bold).

    Two classes give the curve of the second; more give each class against the rest. The mean is
    over the true-positive rates at equal false-positive rates. Folds in which a class has no
    slide, or every slide, have no curve.

    Args:
        tables: Predictions of each fold; slides without a label are left out.

    Raises:
        PredictionError: There are no folds, a fold has no labelled slide, or the classes differ.
    """
    known = labelled_folds(tables)
    names = known[0].class_names
    figure = new_figure(5.2, 5.4)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":", label="chance")
    classes = [1] if len(names) == 2 else list(range(len(names)))
    for position, class_index in enumerate(classes):
        colour = COLOURS[position % len(COLOURS)]
        _draw_roc(axes, known, class_index, plain_words(names[class_index]), colour)
    style_axes(
        axes,
        title=_roc_title(known),
        x_label="False-positive rate",
        y_label="True-positive rate",
    )
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.legend(fontsize=SMALL_SIZE, frameon=True, edgecolor="none", loc="lower right")
    return figure


def draw_reliability(axes: Axes, curve: ReliabilityCurve, *, legend: bool = True) -> None:
    """Draw accuracy against confidence into axes."""
    width = 1 / curve.num_bins
    left = curve.bin_index * width
    axes.bar(
        left, curve.accuracy, width, align="edge", color=COLOURS[5], alpha=0.45, ec="white", lw=1
    )
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":", label="perfect calibration")
    low, high = _wilson(curve.accuracy, curve.count)
    axes.errorbar(
        curve.confidence,
        curve.accuracy,
        yerr=np.stack([curve.accuracy - low, high - curve.accuracy]),
        fmt="o-",
        ms=5,
        lw=1.4,
        elinewidth=1,
        capsize=2.5,
        color=COLOURS[0],
        label="accuracy, 95 % interval",
    )
    axes.set_ylim(0, 1.02)
    if legend:
        _legend_above(axes)


def _legend_above(axes: Axes) -> None:
    axes.legend(
        fontsize=SMALL_SIZE,
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.99),
        ncols=2,
        borderpad=0.2,
    )


def _wilson(
    share: Float[np.ndarray, " K"], count: Int[np.ndarray, " K"]
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    r"""Compute the Wilson interval $\frac{p + z²/2n \pm z\sqrt{p(1-p)/n + z²/4n²}}{1 + z²/n}$."""
    z = _NORMAL_95
    centre = share + z**2 / (2 * count)
    half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    scale = 1 + z**2 / count
    # Rounding may carry an end past the share itself, which an error bar does not allow.
    return np.minimum((centre - half) / scale, share), np.maximum((centre + half) / scale, share)


def _draw_roc(
    axes: Axes, tables: Sequence[PredictionTable], class_index: int, name: str, colour: str
) -> None:
    areas, heights = [], []
    rates = np.linspace(0, 1, 501)
    for table in tables:
        scores, positive = table.probs[:, class_index], table.labels == class_index
        curve = roc_curve(scores, positive)
        if curve is None:
            continue
        areas.append(auroc(scores, positive))
        heights.append(_height_at(curve, rates))
        single = len(tables) == 1
        axes.plot(
            curve.false_positive_rate,
            curve.true_positive_rate,
            color=colour,
            lw=2.0 if single else 0.7,
            alpha=1.0 if single else 0.45,
            label=f"{name}: AUC {areas[0]:.3f}" if single else None,
        )
    if not areas:
        axes.plot([], [], color=colour, lw=2, label=f"{name}: AUC undefined")
    elif len(tables) > 1:
        spread = f" ± {np.std(areas, ddof=1):.3f}" if len(areas) > 1 else ""
        label = f"{name}: AUC {np.mean(areas):.3f}{spread}"
        mean = np.concatenate([[0.0], np.mean(heights, axis=0)])
        axes.plot(np.concatenate([[0.0], rates]), mean, color=colour, lw=2.2, label=label)


def _height_at(curve: RocCurve, rates: Float[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
    """Interpolate the true-positive rate; at a vertical step of the curve, give its top."""
    heights = np.interp(rates, curve.false_positive_rate, curve.true_positive_rate)
    return np.asarray(heights)


def _roc_title(tables: Sequence[PredictionTable]) -> str:
    sizes = sorted({len(table) for table in tables})
    slides = f"n = {sizes[0]}" if len(sizes) == 1 else f"n = {sizes[0]}–{sizes[-1]}"
    if len(tables) == 1:
        return f"ROC curve ({slides})"
    return f"ROC curves of {len(tables)} folds ({slides} a fold)\nbold: mean; AUC: mean ± sd"


def labelled_folds(tables: Sequence[PredictionTable]) -> list[PredictionTable]:
    """Leave out the slides without a label, of folds that can be drawn together.

    Raises:
        PredictionError: There are no folds, a fold has no labelled slide, or the classes differ.
    """
    known = [table.labelled() for table in tables]
    _require_slides(known)
    names = known[0].class_names
    if any(table.class_names != names for table in known):
        raise PredictionError(
            f"Expected the classes {', '.join(names)} in every fold, but they differ. "
            "Draw the folds of one experiment."
        )
    return known


def _require_slides(tables: Sequence[PredictionTable]) -> None:
    if not tables or not all(len(table) for table in tables):
        raise PredictionError(
            "Expected slides with labels to draw, but got none. Add labels to the predictions."
        )


def precision_recall_figure(tables: Sequence[PredictionTable]) -> Figure:
    r"""Draw the precision–recall curve of each fold (thin) and their mean (bold).

    Two classes give the curve of the second; more give each class against the rest. Precision
    holds from one recall down to the one before, so that the area under a curve is its average
    precision. The mean is over the precisions at equal recalls. The dotted line is the share of
    the class among the slides, which is the precision of chance. Folds in which a class has no
    slide, or every slide, have no curve.

    Args:
        tables: Predictions of each fold; slides without a label are left out.

    Raises:
        PredictionError: There are no folds, a fold has no labelled slide, or the classes differ.
    """
    known = labelled_folds(tables)
    names = known[0].class_names
    figure = new_figure(5.2, 5.4)
    axes = figure.add_subplot()
    classes = [1] if len(names) == 2 else list(range(len(names)))
    for position, class_index in enumerate(classes):
        _draw_class(axes, known, class_index, COLOURS[position % len(COLOURS)])
    title = "Precision–recall curve" if len(known) == 1 else "Precision–recall curves of "
    if len(known) > 1:
        title += f"{len(known)} folds\nbold: mean; AP: mean ± sd; dotted: chance"
    style_axes(axes, title=title, x_label="Recall", y_label="Precision")
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.03), aspect="equal")
    axes.legend(fontsize=SMALL_SIZE, frameon=True, edgecolor="none", loc="lower left")
    return figure


def precision_at_recalls(
    scores: Float[np.ndarray, " n"],
    positive: Bool[np.ndarray, " n"],
    recalls: Float[np.ndarray, " R"],
) -> Float[np.ndarray, " R"]:
    r"""Compute the precision at which each recall is first reached.

    Args:
        scores: Score of each slide.
        positive: Whether each slide is of the class.
        recalls: Recalls in [0, 1]; 0 takes the precision of the highest threshold.
    """
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(positive, scores)
    # From the highest threshold down; the last of its points, at recall 0, is no threshold.
    precision, recall = precision[:-1][::-1], recall[:-1][::-1]
    reached = np.searchsorted(recall, recalls - 1e-12, side="left")
    return np.asarray(precision[np.minimum(reached, len(precision) - 1)], dtype=np.float64)


def _draw_class(
    axes: Axes, tables: Sequence[PredictionTable], class_index: int, colour: str
) -> None:
    name = plain_words(tables[0].class_names[class_index])
    recalls = np.linspace(0, 1, 1001)
    areas, heights, shares = [], [], []
    for table in tables:
        scores, positive = table.probs[:, class_index], table.labels == class_index
        if not positive.any() or positive.all():
            continue
        areas.append(average_precision(scores, positive))
        heights.append(precision_at_recalls(scores, positive, recalls))
        shares.append(float(positive.mean()))
    for height in heights:
        single = len(tables) == 1
        axes.plot(
            recalls,
            height,
            color=colour,
            lw=2.0 if single else 0.7,
            alpha=1.0 if single else 0.45,
            label=f"{name}: AP {areas[0]:.3f}" if single else None,
        )
    if not areas:
        axes.plot([], [], color=colour, lw=2, label=f"{name}: AP undefined")
        return
    axes.axhline(float(np.mean(shares)), color=colour, lw=1, ls=":")
    if len(tables) > 1:
        spread = f" ± {np.std(areas, ddof=1):.3f}" if len(areas) > 1 else ""
        label = f"{name}: AP {np.mean(areas):.3f}{spread}"
        axes.plot(recalls, np.mean(heights, axis=0), color=colour, lw=2.2, label=label)


_DARK = 0.55
"""Shares above are on so dark a ground that letters are white."""


def confusion_figure(confusion: Int[np.ndarray, "C C"], class_names: tuple[str, ...]) -> Figure:
    """Draw how many slides of each label (rows) got each prediction (columns).

    The ground is the share of the row, so that the diagonal shows the recall of each class.

    Args:
        confusion: Number of slides of each label and predicted class.
        class_names: Name of each class.

    Raises:
        PredictionError: There is not one row and column a class.
    """
    num = len(class_names)
    if confusion.shape != (num, num):
        raise PredictionError(
            f"Expected a confusion matrix of {num} × {num}, one row and column a class, but got "
            f"{confusion.shape}. Name every class."
        )
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    side = max(2.6, 0.85 * num)
    figure = new_figure(side + 1.6, side + 1.3)
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(num, num):
        share = shares[row, column]
        axes.text(
            column,
            row,
            f"{confusion[row, column]:,}\n{share:.0%}",
            ha="center",
            va="center",
            fontsize=LABEL_SIZE,
            color="white" if share > _DARK else "black",
        )
    names = ["\n".join(wrap(name, 14, max_lines=2, placeholder="…")) for name in class_names]
    axes.set_xticks(range(num), names, parse_math=False)
    axes.set_yticks(range(num), names, parse_math=False)
    total = int(confusion.sum())
    style_axes(axes, title=f"Confusion (n = {total:,})", x_label="Predicted class", y_label="Label")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=18, pad=0.03)
    bar.set_label("Share of the label's slides", fontsize=SMALL_SIZE)
    bar.ax.tick_params(labelsize=SMALL_SIZE)
    bar.outline.set_visible(False)
    return figure
