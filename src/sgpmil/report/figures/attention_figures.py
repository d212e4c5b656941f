"""Figures of what a model looked at: the instances of bags, as pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import InstanceScores, ScoreKind
from sgpmil.report.figures.canvas import COLOURS, LABEL_SIZE, SMALL_SIZE, new_figure, plain_words
from sgpmil.shapes import Float

__all__ = ["AttentionPanel", "attention_figure"]

Images = np.ndarray
"""Instances as (N, h, w) or (N, h, w, 3)."""

_FEWEST_COLUMNS, _MOST_COLUMNS = 9, 12
_TILE_INCHES = 0.62
_PITCH_X, _PITCH_Y = 1.22, 1.42
_ATTENTION_MAP = "viridis"


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPanel:
    """One bag of `attention_figure`.

    Args:
        title: What the bag is, and what the model says of it.
        images: Picture of each instance, (N, h, w) or (N, h, w, 3).
        scores: Scores of the instances.
        class_index: Class that the evidence is for.

    Raises:
        PredictionError: There is not one picture an instance.
    """

    title: str
    images: Images
    scores: InstanceScores
    class_index: int = 1

    def __post_init__(self) -> None:
        shape, num = self.images.shape, self.scores.num_instances
        if len(shape) not in (3, 4) or shape[0] != num or shape[3:] not in ((), (3,)):
            raise PredictionError(
                f"Expected pictures of shape ({num}, h, w) or ({num}, h, w, 3) for the {num} "
                f"instances of '{self.title}', but got {shape}. Pass one picture an instance."
            )


def attention_figure(panels: Sequence[AttentionPanel], max_instances: int = 24) -> Figure:
    """Draw the instances of bags, the most telling first.

    Each bag is a block of pictures in descending order of the evidence for the panel's class
    (of the attention, where there is no evidence), with the score and its standard deviation
    beneath. The frame's colour is the attention, relative to the bag's largest; a dot marks
    instances that are labelled positive.

    Args:
        panels: One bag each.
        max_instances: Most instances to draw of a bag; the rest is counted in its title.

    Raises:
        PredictionError: There are no panels.
    """
    if not panels:
        raise PredictionError("Expected at least one bag to draw, but got none. Pass a panel.")
    shown = [min(panel.scores.num_instances, max_instances) for panel in panels]
    columns = min(max(*shown, _FEWEST_COLUMNS), _MOST_COLUMNS)
    lines = [ceil(count / columns) for count in shown]
    width = _TILE_INCHES * _PITCH_X * columns + 0.1
    height = 0.95 + sum(_TILE_INCHES * _PITCH_Y * count + 0.33 for count in lines)
    figure = new_figure(width, height)
    grid = figure.add_gridspec(len(panels), 1, height_ratios=lines)
    for row, panel in enumerate(panels):
        axes = figure.add_subplot(grid[row])
        _draw_panel(axes, panel, shown[row], columns)
        axes.set_xlim(-0.06, columns * _PITCH_X - 0.16)
        axes.set_ylim(lines[row] * _PITCH_Y - 0.06, -0.06)
    bar = figure.colorbar(
        ScalarMappable(Normalize(0, 1), _ATTENTION_MAP),
        ax=figure.axes,
        location="bottom",
        shrink=0.4,
        aspect=28,
        pad=0.02,
        anchor=(0.0, 0.5),
    )
    bar.set_label("Attention (frame), relative to the bag's largest", fontsize=SMALL_SIZE)
    bar.ax.tick_params(labelsize=SMALL_SIZE)
    if any(_is_marked(panel.scores).any() for panel in panels):
        mark = Line2D([], [], marker="o", ls="", ms=7, color=COLOURS[1], mec="white")
        figure.legend(
            [mark],
            ["instance labelled positive"],
            loc="outside upper right",
            fontsize=SMALL_SIZE,
            frameon=False,
        )
    return figure


def _draw_panel(axes: Axes, panel: AttentionPanel, shown: int, columns: int) -> None:
    scores = panel.scores
    kind: ScoreKind = "attention" if scores.evidence_mean is None else "evidence"
    values = scores.score(kind, panel.class_index)
    spread = scores.score_std(kind, panel.class_index)
    order = np.argsort(-values, kind="stable")[:shown]
    relative = scores.attention_mean / max(float(scores.attention_mean.max()), 1e-300)
    colours = matplotlib.colormaps[_ATTENTION_MAP](np.clip(relative, 0, 1))
    white = float(panel.images.max()) or 1.0  # of grey pictures; matplotlib leaves RGB as it is
    marked = _is_marked(scores)
    unit = _unit(values)
    sign = "+" if kind == "evidence" else ""
    for position, instance in enumerate(order):
        x, y = position % columns * _PITCH_X, position // columns * _PITCH_Y
        axes.imshow(
            panel.images[instance],
            extent=(x, x + 1, y + 1, y),
            aspect="equal",
            cmap="gray",
            vmin=0,
            vmax=white,
        )
        frame = Rectangle((x, y), 1, 1, fill=False, ec=colours[instance], lw=3.2)
        axes.add_patch(frame)
        text = f"{values[instance] / unit:{sign}.2f}"
        if spread.any():
            text += f" ± {spread[instance] / unit:.2f}"
        text = text.replace("-", "−")
        axes.text(x + 0.5, y + 1.08, text, ha="center", va="top", fontsize=6.5, color="#333333")
        if marked[instance]:
            axes.plot(x + 0.93, y + 0.07, "o", ms=7, color=COLOURS[1], mec="white", mew=1)
    axes.set_axis_off()
    axes.set_anchor("NW")
    more = f", {shown} of {scores.num_instances} shown" if shown < scores.num_instances else ""
    what = f"evidence for class {panel.class_index}" if kind == "evidence" else "attention"
    scale = "" if unit == 1 else f" × {1 / unit:.0e}".replace("e+0", "e")
    title = f"{panel.title} (n = {scores.num_instances}, by {what}{scale}{more})"
    axes.set_title(plain_words(title), fontsize=LABEL_SIZE, loc="left", color="black")


def _is_marked(scores: InstanceScores) -> np.ndarray:
    if scores.instance_labels is None:
        return np.zeros(scores.num_instances, dtype=bool)
    return np.asarray(scores.instance_labels > 0)


def _unit(values: Float[np.ndarray, " N"]) -> float:
    """Choose the power of ten in which scores have one or two digits before the point."""
    largest = float(np.abs(values).max())
    if largest == 0 or 0.1 <= largest < 100:
        return 1.0
    return float(10.0 ** floor(log10(largest)))
