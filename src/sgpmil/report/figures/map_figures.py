"""Figures of where on a slide a model looked, how sure it is of it, and what it saw there."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.image import AxesImage

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.map_layers import (
    LayerKind,
    MapLayer,
    MapLimits,
    attention_values,
    map_layers,
    map_limits,
)
from sgpmil.explanation.maps import ScaleKind, patch_side, placed_coords, score_map
from sgpmil.report.figures.canvas import GREY, SMALL_SIZE, new_figure, plain_words
from sgpmil.report.figures.map_drawing import (
    View,
    draw_colour_bar,
    draw_heat,
    draw_outlines,
    draw_scale_bar,
    draw_slide,
    prepare_axes,
)
from sgpmil.runs.slide_picture import SlidePicture
from sgpmil.shapes import Int

__all__ = ["ModelScores", "attention_map_figure", "model_row_figure", "shown_part"]

_COLOURS: dict[LayerKind, str] = {
    "attention": "Reds",
    "attention_std": "Blues",
    "evidence": "PuOr_r",
    "evidence_std": "Blues",
}
_MOST_PIXELS = 1_000_000
"""Pixels of a map in a figure: more than the figure itself has there."""
_MARGIN, _NARROWEST = 0.03, 0.35
"""Of the longer side of what is shown: space around it, and the least of its shorter side."""


def attention_map_figure(
    scores: InstanceScores,
    title: str,
    class_index: int = 1,
    class_name: str | None = None,
    picture: SlidePicture | None = None,
    *,
    scale: ScaleKind = "absolute",
    limits: MapLimits | None = None,
) -> Figure:
    """Draw the slide, the attention and the evidence with their standard deviations.

    Each map lies over the slide, made pale, or on a grey canvas where there is no slide. A
    deterministic model has no deviations, and not every model gives evidence: these panels are
    then left out.

    Args:
        scores: Scores of the instances, with coordinates.
        title: What the slide is.
        class_index: Class that the evidence is for.
        class_name: Name of that class.
        picture: The slide itself, what experts outlined on it, and its resolution.
        scale: Scale of the scores; `rank` and `minmax` are relative to the slide.
        limits: Limits of the colours on the absolute scale that slides share (see `map_limits`);
            by default the slide's own.

    Raises:
        ExplanationError: The scores have no coordinates, or the patches are not on the slide.
    """
    coords, side = placed_coords(scores), patch_side(scores)
    picture = picture or SlidePicture()
    layers = map_layers(scores, class_index, class_name or f"class {class_index}", scale)
    ends = limits or map_limits([(scores, class_index)])
    view = shown_part(coords, side)
    has_slide = picture.pixels is not None
    rows = _rows(layers)
    columns = max(len(row) for row in rows)
    width, height = _panel_size(view)
    lead = 1.0 if len(rows) == 1 else 1.75
    figure = new_figure(
        (columns + lead * has_slide) * (width + 0.15) + 0.2,
        len(rows) * (height + 0.95) + 0.75,
        pad=0.06,
    )
    ratios = [lead] * has_slide + [1.0] * columns
    grid = figure.add_gridspec(len(rows), len(ratios), width_ratios=ratios)
    if has_slide:
        _draw_slide_panel(figure, grid, view, picture, coords)
    for row, found in enumerate(rows):
        for column, layer in enumerate(found):
            axes = figure.add_subplot(grid[row, column + has_slide])
            _draw_layer(figure, axes, view, (coords, side), layer, picture, scale, ends)
            if not has_slide and row == column == 0:
                draw_scale_bar(axes, view, picture.mpp, coords)
    has_evidence = scores.evidence_mean is not None
    note = _scale_note(scale, limits is not None, has_evidence)
    _write_words(figure, title, scores.num_instances, note)
    return figure


@dataclass(frozen=True, slots=True, eq=False)
class ModelScores:
    """What a model says of a slide's instances.

    Args:
        name: Name of the model.
        scores: Its scores.
        limits: Limits of the colours on the absolute scale; those of the slide where not given.
    """

    name: str
    scores: InstanceScores
    limits: MapLimits | None = None


def model_row_figure(
    models: Sequence[ModelScores],
    picture: SlidePicture | None = None,
    title: str = "",
    *,
    scale: ScaleKind = "absolute",
) -> Figure:
    """Draw what several models look at on one slide, side by side.

    On the absolute scale each has a legend of its own, since their attentions differ; on a
    relative scale they share one.

    Args:
        models: The models.
        picture: The slide itself, what experts outlined on it, and its resolution.
        title: What the slide is.
        scale: Scale of the scores.

    Raises:
        ExplanationError: There is no model, scores have no coordinates, or the patches are not
            on the slide.
    """
    if not models:
        raise ExplanationError("Expected at least one model to draw, but got none. Name a run.")
    picture = picture or SlidePicture()
    views = [shown_part(placed_coords(m.scores), patch_side(m.scores)) for m in models]
    lefts, rights, bottoms, tops = zip(*views, strict=True)
    view = (min(lefts), max(rights), max(bottoms), min(tops))
    has_slide = picture.pixels is not None
    width, height = _panel_size(view)
    columns = len(models) + has_slide
    figure = new_figure(columns * (width + 0.12) + 0.2, height + 1.5, pad=0.06)
    grid = figure.add_gridspec(1, columns)
    if has_slide:
        _draw_slide_panel(figure, grid, view, picture, placed_coords(models[0].scores))
    panels, image = [], None
    for column, model in enumerate(models):
        scores = model.scores
        axes = figure.add_subplot(grid[0, column + has_slide])
        layer = map_layers(scores, 0, "", scale)[0]
        ends = model.limits or map_limits([(scores, 0)])
        place = (placed_coords(scores), patch_side(scores))
        own = _draw_layer(
            figure, axes, view, place, layer, picture, scale, ends, bar=scale == "absolute"
        )
        image = image or own
        prepare_axes(axes, view, model.name)
        panels.append(axes)
        if not has_slide and column == 0:
            draw_scale_bar(axes, view, picture.mpp, place[0])
    if scale != "absolute" and image is not None:
        unit = map_layers(models[0].scores, 0, "", scale)[0].unit
        draw_colour_bar(figure, image, panels, f"instance score: {unit}")
    notes = {attention_values(model.scores)[1] for model in models}
    note = "Each model's own instance score."
    if scale == "absolute":
        is_shared = all(model.limits is not None for model in models)
        whose = "each model's run" if is_shared else "each slide and model"
        note += f" Limits of {whose}; the highest 0.5 % share the end of the scale."
        if len(notes) > 1:
            note += " Attention that does not sum to 1 over the slide is shown as the model gives."
    _write_words(figure, title, models[0].scores.num_instances, note)
    return figure


def shown_part(coords: Int[np.ndarray, "N 2"], side: int) -> View:
    """Give the part of the slide that has patches, with a margin.

    It is at least a third as high as it is wide and as wide as it is high: the cores of a needle
    would leave no room for words.

    Args:
        coords: Top-left corners of the patches in level-0 pixels.
        side: Side of a patch in level-0 pixels.
    """
    low, high = coords.min(axis=0).astype(float), coords.max(axis=0) + float(side)
    longest = float((high - low).max())
    half = np.maximum((high - low) / 2 + _MARGIN * longest, _NARROWEST * longest / 2)
    x, y = (low + high) / 2
    return float(x - half[0]), float(x + half[0]), float(y + half[1]), float(y - half[1])


def _rows(layers: Sequence[MapLayer]) -> list[list[MapLayer]]:
    """Lay out scores as rows and deviations beside them; of a deterministic model in one row."""
    attention = [layer for layer in layers if layer.kind.startswith("attention")]
    evidence = [layer for layer in layers if layer.kind.startswith("evidence")]
    if len(attention) == 1 or not evidence:
        return [[*attention, *evidence]]
    return [attention, evidence]


def _panel_size(view: View) -> tuple[float, float]:
    """Choose width and height of a panel in inches, in the proportions of what it shows."""
    ratio = abs(view[2] - view[3]) / abs(view[1] - view[0])
    width = float(np.clip(5.0 / ratio, 2.3, 3.3))
    return width, float(np.clip(width * ratio, 1.0, 5.5))


def _draw_slide_panel(
    figure: Figure,
    grid: GridSpec,
    view: View,
    picture: SlidePicture,
    coords: Int[np.ndarray, "N 2"],
) -> None:
    axes = figure.add_subplot(grid[:, 0])
    prepare_axes(axes, view, "Slide")
    draw_slide(axes, picture)
    draw_outlines(axes, picture, legend=True)
    draw_scale_bar(axes, view, picture.mpp, coords)


def _draw_layer(
    figure: Figure,
    axes: Axes,
    view: View,
    place: tuple[Int[np.ndarray, "N 2"], int],
    layer: MapLayer,
    picture: SlidePicture,
    scale: ScaleKind,
    ends: MapLimits,
    *,
    bar: bool = True,
) -> AxesImage:
    prepare_axes(axes, view, layer.title)
    draw_slide(axes, picture, pale=True)
    end = ends.of(layer.kind) if scale == "absolute" else 1.0
    norm = Normalize(-end if layer.is_signed else 0.0, end)
    drawn = score_map(*place, layer.values, most_pixels=_MOST_PIXELS)
    image = draw_heat(
        axes, drawn, _COLOURS[layer.kind], norm, over_slide=picture.pixels is not None
    )
    draw_outlines(axes, picture)
    if bar:
        draw_colour_bar(figure, image, axes, layer.unit)
    return image


def _scale_note(scale: ScaleKind, is_shared: bool, has_evidence: bool) -> str:
    if scale != "absolute":
        return "Colours are relative to this slide: not to be compared with other slides."
    whose = "are the same on every slide of the run" if is_shared else "are those of this slide"
    text = f"Limits of the colours {whose}; the highest 0.5 % of the scores share the end."
    if has_evidence:
        text += " The mean of evidence × N over the patches is the slide's logit margin, less bias."
    return text


def _write_words(figure: Figure, title: str, num_patches: int, note: str) -> None:
    # Letters that fit into an inch: about 10 of the title's, 16 of the small print's.
    width = figure.get_figwidth()
    words = textwrap.fill(f"{title} ({num_patches:,} patches)", max(20, int(9.5 * width)))
    figure.suptitle(plain_words(words), fontsize=12, x=0.01, ha="left")
    small = textwrap.fill(note, max(30, int(15.5 * width)))
    figure.supxlabel(small, fontsize=SMALL_SIZE, x=0.01, ha="left", color=GREY)
