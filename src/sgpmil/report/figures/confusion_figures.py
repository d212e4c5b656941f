"""The confusion matrix as a figure."""

from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure

from sgpmil.errors import PredictionError
from sgpmil.report.figures.canvas import LABEL_SIZE, SMALL_SIZE, new_figure, style_axes
from sgpmil.shapes import Int

__all__ = ["confusion_figure"]

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
