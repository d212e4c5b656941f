"""Figures of patches: the key patches of a slide, and the instances of bags as pictures."""

from collections.abc import Mapping, Sequence
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

from sgpmil.errors import ExplanationError, PredictionError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.key_patches import KeyPatch, KeyPatchKind
from sgpmil.explanation.map_layers import attention_values
from sgpmil.explanation.maps import patch_side, placed_coords, score_map
from sgpmil.report.figures.canvas import (
    COLOURS,
    GREY,
    LABEL_SIZE,
    SMALL_SIZE,
    new_figure,
    plain_words,
)
from sgpmil.report.figures.map_drawing import (
    draw_heat,
    draw_slide_panel,
    shown_part,
)
from sgpmil.runs.slide_picture import SlidePicture
from sgpmil.shapes import Float, UInt8

_TILE_INCHES = 1.12
_TEXT_INCHES = 0.36
_FRAMES: dict[KeyPatchKind, str] = {
    "attention": COLOURS[1],
    "evidence": COLOURS[0],
    "single": COLOURS[2],
    "against": COLOURS[6],
    "unsure": COLOURS[3],
}
_TEXT_SIZE = 7.5
_GROUND_PIXELS = 500_000


def key_patch_figure(
    scores: InstanceScores,
    patches: Mapping[KeyPatchKind, Sequence[KeyPatch]],
    title: str,
    class_name: str,
    picture: SlidePicture | None = None,
    images: Mapping[int, UInt8[np.ndarray, "s s 3"]] | None = None,
) -> Figure:
    """Draw key patches, a row a kind, and where on the slide they are.

    Without pictures, a patch is shown as its number and place. The frames of a row have the
    colour of those on the slide. A dot marks patches that are labelled positive.

    Args:
        scores: Scores of the slide's instances.
        patches: The patches, by kind (see `key_patches`).
        title: Title of the figure.
        class_name: Name of the class that the evidence is for.
        picture: The slide.
        images: Picture of each patch, by its number in the bag (see `cut_patches`).

    Raises:
        ExplanationError: There is no patch.
    """
    shown = {kind: found for kind, found in patches.items() if found}
    if not shown:
        raise ExplanationError("Expected patches to draw, but got none. Choose some.")
    picture = picture or SlidePicture()
    columns = max(4, *(len(found) for found in shown.values()))
    row_height = _TILE_INCHES + _TEXT_INCHES + 0.3
    body = row_height * len(shown)
    is_placed = scores.coords is not None
    lead = 1.25 * body if is_placed else 0.0
    figure = new_figure(lead + columns * (_TILE_INCHES + 0.08) + 0.3, body + 0.85, pad=0.05)
    outer = figure.add_gridspec(
        1, 1 + is_placed, width_ratios=[lead, columns * (_TILE_INCHES + 0.08)][not is_placed :]
    )
    if is_placed:
        _draw_places(figure.add_subplot(outer[0, 0]), scores, shown, picture)
    grid = outer[0, int(is_placed)].subgridspec(len(shown), 1)
    _, is_relative = attention_values(scores)
    factor = float(scores.num_instances) if is_relative else 1.0
    for row, (kind, found) in enumerate(shown.items()):
        axes = figure.add_subplot(grid[row, 0])
        _draw_row(axes, found, _FRAMES[kind], images or {}, factor, columns)
        axes.set_title(plain_words(_title(kind, class_name)), fontsize=LABEL_SIZE, loc="left")
    unit = "Attention × N: 1 is the average patch." if is_relative else "Attention as it is."
    marked = " A dot: labelled positive." if _has_positive(shown) else ""
    note = f"{unit} ± posterior standard deviation.{marked}"
    figure.suptitle(plain_words(title), fontsize=12, x=0.01, ha="left")
    figure.supxlabel(note, fontsize=SMALL_SIZE, x=0.01, ha="left", color=GREY)
    return figure


def _title(kind: KeyPatchKind, class_name: str) -> str:
    return {
        "attention": "Highest attention",
        "evidence": f"Most evidence for {class_name}   (share in the logit)",
        "single": f"Most like {class_name} when seen alone   (probability, log-odds)",
        "against": f"Most evidence against {class_name}   (share in the logit)",
        "unsure": "High attention, but unsure   (largest sd ÷ mean in the top tenth)",
    }[kind]


def _draw_places(
    axes: Axes,
    scores: InstanceScores,
    shown: Mapping[KeyPatchKind, Sequence[KeyPatch]],
    picture: SlidePicture,
) -> None:
    """Show the places of the patches: on the slide, or among all patches."""
    coords, side = placed_coords(scores), patch_side(scores)
    view = shown_part(coords, side)
    if draw_slide_panel(axes, view, picture, "Where they are", coords) is None:
        ground = score_map(coords, side, np.zeros(len(coords)), most_pixels=_GROUND_PIXELS)
        draw_heat(axes, ground, "Greys", Normalize(0, 1), over_slide=False)
    for depth, (kind, found) in enumerate(shown.items()):
        # One within the other, so that a patch of several kinds shows all its colours.
        inset = 0.12 * depth * side
        for patch in found:
            x, y = coords[patch.patch] + inset
            width = side - 2 * inset
            frame = Rectangle((x, y), width, width, fill=False, ec=_FRAMES[kind], lw=1.6)
            axes.add_patch(frame)


def _draw_row(
    axes: Axes,
    patches: Sequence[KeyPatch],
    frame: str,
    images: Mapping[int, UInt8[np.ndarray, "s s 3"]],
    factor: float,
    columns: int,
) -> None:
    pitch = 1 + 0.08 / _TILE_INCHES
    for column, patch in enumerate(patches):
        x = column * pitch
        image = images.get(patch.patch)
        if image is not None:
            axes.imshow(image, extent=(x, x + 1, 1, 0), interpolation="antialiased")
        else:
            place = (
                "" if patch.corner is None else f"\nx {patch.corner[0]:,}\ny {patch.corner[1]:,}"
            )
            axes.text(x + 0.5, 0.5, f"patch {patch.patch}{place}", ha="center", va="center",
                      fontsize=_TEXT_SIZE)  # fmt: skip
        axes.add_patch(Rectangle((x, 0), 1, 1, fill=False, ec=frame, lw=2.2))
        if patch.label is not None and patch.label > 0:
            axes.plot(x + 0.9, 0.1, "o", ms=6.5, color="black", mec="white", mew=1.2)
        axes.text(x + 0.5, 1.05, _numbers(patch, factor), ha="center", va="top",
                  fontsize=_TEXT_SIZE, linespacing=1.25)  # fmt: skip
    axes.set_xlim(-0.03, columns * pitch)
    axes.set_ylim(1 + _TEXT_INCHES / _TILE_INCHES, -0.03)
    axes.set_aspect("equal", anchor="NW")
    axes.set_axis_off()


def _numbers(patch: KeyPatch, factor: float) -> str:
    """Write the score that the patch was chosen for."""
    if patch.kind in ("evidence", "against") and patch.evidence is not None:
        return _number_text(patch.evidence, patch.evidence_std or 0.0, "+")
    if patch.kind == "single" and patch.single is not None:
        log_odds = _number_text(patch.single, patch.single_std or 0.0, "+")
        share = patch.single_probability or 0.0
        return f"p {'> 0.999' if share >= 0.9995 else f'= {share:.3f}'}\n{log_odds}"
    text = _number_text(factor * patch.attention, factor * patch.attention_std)
    if patch.kind == "unsure":
        text += f"\nsd ÷ mean {patch.variation:.2f}"
    return text


def _number_text(mean: float, std: float, sign: str = "") -> str:
    size = floor(log10(abs(mean))) if mean else 0
    digits = min(max(2 - size, 0), 5)
    text = f"{mean:{sign}.{digits}f}"
    return (f"{text} ± {std:.{digits}f}" if std > 0 else text).replace("-", "−")


def _has_positive(shown: Mapping[KeyPatchKind, Sequence[KeyPatch]]) -> bool:
    return any((patch.label or 0) > 0 for found in shown.values() for patch in found)


Images = np.ndarray
"""Instances as (N, h, w) or (N, h, w, 3)."""

_FEWEST_COLUMNS, _MOST_COLUMNS = 9, 12
_BAG_TILE_INCHES = 0.62
_PITCH_X, _PITCH_Y = 1.22, 1.42
_ATTENTION_MAP = "viridis"


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPanel:
    """One bag of `attention_figure`.

    Args:
        title: Name of the bag, and its prediction.
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
    width = _BAG_TILE_INCHES * _PITCH_X * columns + 0.1
    height = 0.95 + sum(_BAG_TILE_INCHES * _PITCH_Y * count + 0.33 for count in lines)
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
    kind = scores.best_kind
    values = scores.score(kind, panel.class_index)
    spread = scores.score_std(kind, panel.class_index)
    order = np.argsort(-values, kind="stable")[:shown]
    relative = scores.attention_mean / max(float(scores.attention_mean.max()), 1e-300)
    colours = matplotlib.colormaps[_ATTENTION_MAP](np.clip(relative, 0, 1))
    white = float(panel.images.max()) or 1.0  # of grey pictures; matplotlib leaves RGB as it is
    marked = _is_marked(scores)
    unit = _unit(values)
    sign = "" if kind == "attention" else "+"
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
    what = kind if kind == "attention" else f"{kind} for class {panel.class_index}"
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
