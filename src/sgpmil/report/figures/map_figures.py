"""Figures of a slide's maps: its scores with their deviations; several models."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores, ScoreKind
from sgpmil.explanation.colour_scales import COLOUR_SCALES, colour_range
from sgpmil.explanation.map_layers import (
    LayerKind,
    MapLayer,
    MapLimits,
    attention_values,
    map_layers,
    map_limits,
)
from sgpmil.explanation.maps import ScaleKind, patch_side, placed_coords, score_map
from sgpmil.explanation.slide_explanation import ModelScores
from sgpmil.report.figures.canvas import (
    GREY,
    SMALL_SIZE,
    TITLE_SIZE,
    new_figure,
    plain_words,
)
from sgpmil.report.figures.map_drawing import (
    PatchMark,
    View,
    draw_colour_bar,
    draw_heat,
    draw_marks,
    draw_outlines,
    draw_scale_bar,
    draw_slide,
    draw_slide_panel,
    in_lines,
    prepare_axes,
    shown_part,
)
from sgpmil.runs.slide_picture import SlidePicture
from sgpmil.shapes import Int

_MOST_PIXELS = 1_000_000
"""Pixels of a map in a figure: more than the figure itself has there."""
_GROUND_STRETCH = 3.0
"""Limit of the grey attention beneath marks, in limits of the attention map: it stays pale."""


@dataclass(frozen=True, slots=True)
class MapLook:
    """Size and words of a figure of maps.

    Args:
        width: Width of the figure in inches; by default the panels decide.
        height: Most height of the figure in inches.
        text: Size of the letters, relative to the usual.
        titles: Title of each kind of layer; by default the layer's own.
        has_words: Whether title, note and units are written.
    """

    width: float | None = None
    height: float = 100.0
    text: float = 1.0
    titles: Mapping[LayerKind, str] = field(default_factory=dict)
    has_words: bool = True


def attention_map_figure(
    scores: InstanceScores,
    title: str,
    class_index: int = 1,
    class_name: str | None = None,
    picture: SlidePicture | None = None,
    *,
    scale: ScaleKind = "absolute",
    kinds: Sequence[ScoreKind] | None = None,
    limits: MapLimits | None = None,
    marks: Sequence[PatchMark] | None = None,
    look: MapLook | None = None,
) -> Figure:
    """Draw the slide and the scores of its patches with their standard deviations.

    Each map lies over the pale slide, or on a grey canvas where there is no slide. A
    deterministic model has no deviations, and not every model gives every score: these panels
    are then left out.

    Args:
        scores: Scores of the instances, with coordinates.
        title: Title of the figure.
        class_index: Class that evidence and single are for.
        class_name: Name of that class.
        picture: The slide, the experts' outlines, and the resolution.
        scale: Scale of the scores; `rank` and `minmax` are relative to the slide.
        kinds: Scores to draw; by default all that there are.
        limits: Limits of the colours on the absolute scale that slides share (see `map_limits`);
            by default the slide's own.
        marks: Patches to frame on the slide or, where there is none, on its attention in grey.
        look: Size and words of the figure.

    Raises:
        ExplanationError: The scores have no coordinates, or the patches are not on the slide.
        PredictionError: A score in `kinds` is not there.
    """
    look = look or MapLook()
    coords, side = placed_coords(scores), patch_side(scores)
    picture = picture or SlidePicture()
    name = class_name or f"class {class_index}"
    layers = map_layers(scores, class_index, name, scale, kinds=kinds)
    ends = limits or map_limits([(scores, class_index)])
    view = shown_part(coords, side)
    has_slide = picture.pixels is not None
    has_first = has_slide or marks is not None
    rows = _rows(layers)
    columns = max(len(row) for row in rows)
    lead = 1.0 if len(rows) == 1 else 1.75
    titles = [look.titles.get(layer.kind, layer.title) for layer in layers]
    width, height, cell = _figure_size(view, columns + lead * has_first, len(rows), titles, look)
    figure = new_figure(width, height, pad=0.06 * look.text)
    ratios = [lead] * has_first + [1.0] * columns
    grid = figure.add_gridspec(len(rows), len(ratios), width_ratios=ratios)
    draw = _LayerDrawing(figure, view, (coords, side), picture, scale, ends, look, cell)
    if has_first:
        axes = figure.add_subplot(grid[:, 0])
        first = "Slide" if marks is None else "Slide, with the patches below"
        first = first if has_slide else "Patches below"
        draw_slide_panel(axes, view, picture, first, coords, look.text)
        if not has_slide:
            draw.heat(axes, layers[0], "Greys", _GROUND_STRETCH)
        draw_marks(axes, view, marks or (), look.text)
    for row, found in enumerate(rows):
        for column, layer in enumerate(found):
            if layer is None:
                continue
            axes = figure.add_subplot(grid[row, column + has_first])
            draw.layer(axes, layer)
            if not has_first and row == column == 0:
                draw_scale_bar(axes, view, picture.mpp, coords)
    if look.has_words:
        note = _scale_note(scale, limits is not None, [layer.kind for layer in layers])
        _write_words(figure, title, scores.num_instances, note)
    return figure


@dataclass(frozen=True, slots=True, eq=False)
class _LayerDrawing:
    """Draws the layers of one slide."""

    figure: Figure
    view: View
    place: tuple[Int[np.ndarray, "N 2"], int]
    picture: SlidePicture
    scale: ScaleKind
    ends: MapLimits
    look: MapLook
    width: float
    """Width of a panel in inches."""

    def layer(self, axes: Axes, layer: MapLayer, *, bar: bool = True) -> AxesImage:
        title = self.look.titles.get(layer.kind, layer.title)
        prepare_axes(axes, self.view, title, self.look.text, self.width)
        draw_slide(axes, self.picture, pale=True)
        image = self.heat(axes, layer, COLOUR_SCALES[layer.kind].name)
        draw_outlines(axes, self.picture)
        if bar:
            unit = layer.unit if self.look.has_words else ""
            draw_colour_bar(self.figure, image, axes, unit, self.look.text, self.width)
        return image

    def heat(self, axes: Axes, layer: MapLayer, colours: str, stretch: float = 1.0) -> AxesImage:
        limits = self.ends if self.scale == "absolute" else None
        low, high = colour_range(layer.kind, limits, is_signed=layer.is_signed)
        norm = Normalize(stretch * low, stretch * high)
        drawn = score_map(*self.place, layer.values, most_pixels=_MOST_PIXELS)
        has_slide = self.picture.pixels is not None
        return draw_heat(axes, drawn, colours, norm, over_slide=has_slide)


def model_row_figure(
    models: Sequence[ModelScores],
    picture: SlidePicture | None = None,
    title: str = "",
    *,
    scale: ScaleKind = "absolute",
) -> Figure:
    """Draw the attention of several models on one slide, side by side.

    On the absolute scale each has its own colour bar, since their attentions differ; on a
    relative scale they share one.

    Args:
        models: The models.
        picture: The slide, the experts' outlines, and the resolution.
        title: Title of the figure.
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
        avoid = placed_coords(models[0].scores)
        draw_slide_panel(figure.add_subplot(grid[:, 0]), view, picture, avoid=avoid)
    panels, image = [], None
    for column, model in enumerate(models):
        scores = model.scores
        axes = figure.add_subplot(grid[0, column + has_slide])
        layer = map_layers(scores, 0, "", scale)[0]
        ends = model.limits or map_limits([(scores, 0)])
        place = (placed_coords(scores), patch_side(scores))
        look = MapLook(titles={"attention": model.name})
        draw = _LayerDrawing(figure, view, place, picture, scale, ends, look, width)
        own = draw.layer(axes, layer, bar=scale == "absolute")
        image = image or own
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


def _rows(layers: Sequence[MapLayer]) -> list[list[MapLayer | None]]:
    """Lay out scores in a row, and their deviations beneath them; None leaves a place empty.

    Novelty has no deviation: it stands in the first place that is empty.
    """
    spreads = {layer.kind.removesuffix("_std"): layer for layer in layers if "_std" in layer.kind}
    scores = [layer for layer in layers if "_std" not in layer.kind]
    if not spreads:
        return [[*scores]]
    top: list[MapLayer | None] = [layer for layer in scores if layer.kind != "novelty"]
    bottom = [spreads.get(layer.kind) for layer in scores if layer.kind != "novelty"]
    for layer in scores:
        if layer.kind == "novelty" and None in bottom:
            bottom[bottom.index(None)] = layer
        elif layer.kind == "novelty":
            top.append(layer)
    return [top, bottom]


def _figure_size(
    view: View, columns: float, rows: int, titles: Sequence[str], look: MapLook
) -> tuple[float, float, float]:
    """Choose width and height of a figure, and the width of a panel, in inches.

    Args:
        view: Part of the slide.
        columns: Width of the figure in panels.
        rows: Rows of panels.
        titles: Titles of the panels.
        look: Look of the figure.
    """
    size = look.text * TITLE_SIZE
    line = 1.2 * size / 72
    if look.width is None:
        width, height = _panel_size(view)
        more = line * (_most_lines(titles, width, size) - 1)
        words = 0.95 + more
        return columns * (width + 0.15) + 0.2, rows * (height + words) + 0.75, width
    ratio = abs(view[2] - view[3]) / abs(view[1] - view[0])
    widest = look.width / columns - 0.1
    # Title and colour bar of a panel, the title in as many lines as it needs.
    words = 0.85 * look.text + line * (_most_lines(titles, widest, size) - 1)
    height = min(ratio * widest, look.height / rows - words)
    return look.width, rows * (height + words), widest


def _most_lines(titles: Sequence[str], width: float, size: float) -> int:
    return max(in_lines(title, width, size).count("\n") + 1 for title in titles)


def _panel_size(view: View) -> tuple[float, float]:
    """Choose width and height of a panel in inches, in the proportions of what it shows."""
    ratio = abs(view[2] - view[3]) / abs(view[1] - view[0])
    width = float(np.clip(5.0 / ratio, 2.3, 3.3))
    return width, float(np.clip(width * ratio, 1.0, 5.5))


def _scale_note(scale: ScaleKind, is_shared: bool, kinds: Sequence[LayerKind]) -> str:
    if scale != "absolute":
        return "Colours are relative to this slide: do not compare them with other slides."
    whose = "are the same on every slide of the run" if is_shared else "are those of this slide"
    text = f"Limits of the colours {whose}; the highest 0.5 % of the scores share the end."
    if "evidence" in kinds:
        text += " The mean of evidence × N over the patches is the slide's logit margin, less bias."
    if "single" in kinds:
        text += " Patch alone: what the model would say of a slide that holds this patch only."
    return text


def _write_words(figure: Figure, title: str, num_patches: int, note: str) -> None:
    # Letters that fit into an inch: about 10 of the title's, 16 of the small print's.
    width = figure.get_figwidth()
    words = textwrap.fill(f"{title} ({num_patches:,} patches)", max(20, int(9.5 * width)))
    figure.suptitle(plain_words(words), fontsize=12, x=0.01, ha="left")
    small = textwrap.fill(note, max(30, int(15.5 * width)))
    figure.supxlabel(small, fontsize=SMALL_SIZE, x=0.01, ha="left", color=GREY)
