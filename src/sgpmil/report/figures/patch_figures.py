"""Figure of the key patches of a slide, and of their places."""

from collections.abc import Mapping, Sequence
from math import floor, log10

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sgpmil.errors import ExplanationError
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
from sgpmil.shapes import UInt8

__all__ = ["key_patch_figure"]

_TILE_INCHES = 1.12
_TEXT_INCHES = 0.36
_FRAMES: dict[KeyPatchKind, str] = {
    "attention": COLOURS[1],
    "evidence": COLOURS[0],
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
