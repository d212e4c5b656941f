"""The precision–recall curves of a run."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import average_precision
from sgpmil.report.figures.canvas import COLOURS, SMALL_SIZE, new_figure, plain_words, style_axes
from sgpmil.report.figures.curves import labelled_folds
from sgpmil.shapes import Bool, Float

__all__ = ["precision_at_recalls", "precision_recall_figure"]


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
    r"""Give the precision at which each recall is first reached.

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
