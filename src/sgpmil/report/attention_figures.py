"""Figures of where a model looked: the instances of bags, and maps of slides."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import InstanceScores, ScoreKind
from sgpmil.report.canvas import COLOURS, GREY, LABEL_SIZE, SMALL_SIZE, new_figure, style_axes
from sgpmil.shapes import Float, Int, UInt8

__all__ = ["AttentionPanel", "SlidePicture", "attention_figure", "attention_map_figure"]

Images = np.ndarray
"""Instances as (N, h, w) or (N, h, w, 3)."""

_FEWEST_COLUMNS, _MOST_COLUMNS = 9, 12
_TILE_INCHES = 0.62
_PITCH_X, _PITCH_Y = 1.22, 1.42
_ATTENTION_MAP, _SPREAD_MAP, _EVIDENCE_MAP = "viridis", "cividis", "PuOr_r"


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


@dataclass(frozen=True, slots=True, eq=False)
class SlidePicture:
    """A slide to look at beside its maps.

    Args:
        pixels: The slide made small.
        size: Width and height of the slide in level-0 pixels.
        outlines: What experts drew on it: corners (x, y) in level-0 pixels.
        outlined: What that is.
    """

    pixels: UInt8[np.ndarray, "h w 3"]
    size: tuple[int, int]
    outlines: tuple[Float[np.ndarray, "_ 2"], ...] = ()
    outlined: str = "annotated"


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


def attention_map_figure(
    scores: InstanceScores,
    title: str,
    class_index: int = 1,
    class_name: str | None = None,
    picture: SlidePicture | None = None,
) -> Figure:
    """Draw a slide's attention, its standard deviation and the evidence, each at its place.

    Args:
        scores: Scores of the instances, with coordinates.
        title: What the slide is.
        class_index: Class that the evidence is for.
        class_name: Name of that class.
        picture: The slide itself, to be shown beside them.

    Raises:
        PredictionError: The scores have no coordinates.
    """
    if scores.coords is None:
        raise PredictionError(
            "Expected scores with coordinates for a map, but got none. "
            "Extract the bags with coordinates."
        )
    maps: list[tuple[str, str, Float[np.ndarray, " N"]]] = [
        (
            "Attention, posterior mean" if scores.attention_std.any() else "Attention",
            _ATTENTION_MAP,
            scores.attention_mean,
        )
    ]
    if scores.attention_std.any():  # a deterministic model has none to show
        maps.append(("Attention, posterior sd", _SPREAD_MAP, scores.attention_std))
    if scores.evidence_mean is not None:
        name = class_name or f"class {class_index}"
        evidence = scores.score("evidence", class_index)
        maps.append((f"Evidence for {name}", _EVIDENCE_MAP, evidence))
    side = scores.patch_size or _spacing(scores.coords)
    extent = np.ptp(scores.coords, axis=0) + side
    ratio = float(extent[1] / extent[0])
    width = float(np.clip(5.5 / ratio, 2.2, 3.8))
    height = float(np.clip(width * ratio, 1.5, 5.5))
    columns = len(maps) + (picture is not None)
    figure = new_figure((width + 0.35) * columns + 0.6, height + 1.9, pad=0.08)
    if picture is not None:
        axes = figure.add_subplot(1, columns, columns)
        _draw_picture(axes, picture)
        _show_extent(axes, scores.coords, side)
        style_axes(axes, title="Slide", x_label="x (level-0 px)")
        axes.tick_params(labelleft=False)
    for column, (name, colours, values) in enumerate(maps):
        axes = figure.add_subplot(1, columns, column + 1)
        _draw_map(figure, axes, scores.coords, side, values, colours)
        if picture is not None:
            _draw_outlines(axes, picture, "white")
        style_axes(axes, title=name, x_label="x (level-0 px)")
        if column == 0:
            axes.set_ylabel("y (level-0 px)", fontsize=LABEL_SIZE)
        else:
            axes.tick_params(labelleft=False)
    figure.suptitle(
        f"{title} (n = {scores.num_instances} instances)", fontsize=12, x=0.01, ha="left"
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
    axes.set_title(title, fontsize=LABEL_SIZE, loc="left", color="black")


def _draw_map(
    figure: Figure,
    axes: Axes,
    coords: Int[np.ndarray, "N 2"],
    side: int,
    values: Float[np.ndarray, " N"],
    colours: str,
) -> None:
    # Where instances overlap, the strongest lies on top.
    order = np.argsort(np.abs(values), kind="stable")
    coords, values = coords[order], values[order]
    corners = side * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    squares = coords[:, None, :] + corners
    # The few largest values share the end of the scale, so that the others keep some contrast.
    if colours == _EVIDENCE_MAP:
        largest = _upper_end(np.abs(values)) or 1.0
        norm, extend = Normalize(-largest, largest), "both"
    else:
        norm, extend = Normalize(float(values.min()), _upper_end(values)), "max"
    collection = PolyCollection(
        list(squares), array=values, cmap=colours, norm=norm, lw=0.1, edgecolors="face"
    )
    axes.add_collection(collection)
    _show_extent(axes, coords, side)
    axes.set_facecolor("#d9d9d9")
    bar = figure.colorbar(
        collection, ax=axes, location="bottom", aspect=24, pad=0.03, extend=extend
    )
    bar.ax.tick_params(labelsize=SMALL_SIZE, color=GREY)
    bar.ax.xaxis.get_offset_text().set_fontsize(SMALL_SIZE)
    bar.locator = MaxNLocator(4)
    formatter = ScalarFormatter(useMathText=True)
    formatter.set_powerlimits((-2, 4))
    bar.formatter = formatter
    bar.update_ticks()
    bar.outline.set_visible(False)


def _show_extent(axes: Axes, coords: Int[np.ndarray, "N 2"], side: int) -> None:
    """Show the part of the slide that has instances."""
    low, high = coords.min(axis=0), coords.max(axis=0) + side
    margin = 0.02 * float((high - low).max())
    axes.set_xlim(low[0] - margin, high[0] + margin)
    axes.set_ylim(high[1] + margin, low[1] - margin)
    axes.set_aspect("equal")
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _draw_picture(axes: Axes, picture: SlidePicture) -> None:
    width, height = picture.size
    axes.imshow(picture.pixels, extent=(0, width, height, 0), interpolation="antialiased")
    _draw_outlines(axes, picture, "black")
    if picture.outlines:
        line = Line2D([], [], color="black", lw=1.2)
        axes.legend(
            [line], [picture.outlined], loc="upper right", fontsize=SMALL_SIZE, framealpha=0.9
        )


def _draw_outlines(axes: Axes, picture: SlidePicture, colour: str) -> None:
    for corners in picture.outlines:
        axes.plot(corners[:, 0], corners[:, 1], color=colour, lw=1.2)


def _upper_end(values: Float[np.ndarray, " N"]) -> float:
    """Give the 99.5th percentile, or the largest value where that is no larger than the least."""
    end = float(np.quantile(values, 0.995))
    return end if end > values.min() else float(values.max())


def _spacing(coords: Int[np.ndarray, "N 2"]) -> int:
    """Guess the side of an instance: the smallest step between coordinates."""
    steps = [np.diff(np.unique(coords[:, axis])) for axis in (0, 1)]
    found = [int(step.min()) for step in steps if len(step)]
    return min(found, default=1)


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
