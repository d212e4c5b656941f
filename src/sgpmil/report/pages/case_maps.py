"""The maps of a case report: the slide with the patches to look at, and what the model saw."""

from dataclasses import dataclass
from math import ceil

from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar  # type: ignore[import-untyped]

from sgpmil.errors import SgpmilError
from sgpmil.explanation.map_layers import (
    LayerKind,
    MapLayer,
    attention_values,
    map_layers,
    map_limits,
)
from sgpmil.explanation.maps import score_map
from sgpmil.report.figures.canvas import GREY, new_figure
from sgpmil.report.figures.map_drawing import (
    View,
    draw_heat,
    draw_outlines,
    draw_scale_bar,
    draw_slide,
    prepare_axes,
)
from sgpmil.report.figures.map_figures import shown_part
from sgpmil.report.pages.case_patches import PatchKind
from sgpmil.report.pages.case_report import CaseReport
from sgpmil.report.pages.typesetting import Sheet

__all__ = ["MARK_COLOURS", "case_map_figure", "draw_case_maps", "map_height", "why_no_maps"]

MARK_COLOURS: dict[PatchKind, str] = {
    "for": "#b35806",
    "against": "#542788",
    "unsure": "#0072B2",
}
"""Colours of the patches' frames: those of the evidence map's ends, and blue."""

_COLOURS: dict[LayerKind, str] = {
    "attention": "Reds",
    "attention_std": "Blues",
    "evidence": "PuOr_r",
    "evidence_std": "Blues",
}
_TITLES: dict[LayerKind, str] = {
    "attention": "Where it looked (attention)",
    "attention_std": "How unsure of that (sd)",
    "evidence": "For (+) and against (−)",
    "evidence_std": "How unsure of that (sd)",
}
_MOST_PIXELS = 400_000
_TITLE, _LEGEND, _GAP = 0.17, 0.3, 0.12
"""Heights of a panel's title and of its colours' legend, and the gap between panels: inches."""
_BAR = 0.07
_TEXT = 6.8


def why_no_maps(case: CaseReport) -> str:
    """Say why there are no maps; empty where there are.

    Args:
        case: The case.
    """
    if case.scores is None:
        return "There are no scores of patches, so there are no maps."
    if case.scores.coords is None:
        return "The patches have no coordinates, so there are no maps."
    if case.side is None:
        return "The size of the patches is not known, so there are no maps."
    return ""


def map_height(case: CaseReport, width: float) -> float:
    """Give the height that maps of a width take, in inches.

    Args:
        case: A case with maps.
        width: Width in inches.
    """
    plan = _Plan.of(case)
    return plan.height(plan.fitting(width))


def draw_case_maps(
    figure: Figure, case: CaseReport, left: float, top: float, width: float, height: float
) -> None:
    """Draw the slide, and the maps beside it, into a part of a figure without a layout.

    Args:
        figure: The figure.
        case: A case with maps.
        left: Left end of the part in inches.
        top: Its top, in inches from the figure's.
        width: Its width in inches.
        height: Its height in inches; panels shrink to fit.
    """
    plan = _Plan.of(case)
    panel = min(plan.fitting(width), plan.fitting_height(height))
    view, ratio = _view(case), plan.ratio
    whole, tall = (float(side) for side in figure.get_size_inches())

    def place(x: float, y: float, wide: float, high: float) -> Axes:
        return figure.add_axes((x / whole, 1 - (y + high) / tall, wide / whole, high / tall))

    _draw_places(
        place(left, top + _TITLE, plan.lead * panel, plan.lead * panel * ratio), case, view
    )
    slide_end = top + _TITLE + plan.lead * panel * ratio
    room = top + plan.height(panel) - slide_end - 0.05
    _write_legend(figure, case, left, slide_end + 0.05, plan.lead * panel, room)
    for number, layer in enumerate(plan.layers):
        row, column = divmod(number, plan.columns)
        x = left + plan.lead * panel + _GAP + column * (panel + _GAP)
        y = top + row * (panel * ratio + _TITLE + _LEGEND) + _TITLE
        image = _draw_layer(place(x, y, panel, panel * ratio), case, view, layer)
        bar = place(x + 0.06 * panel, y + panel * ratio + 0.05, 0.88 * panel, _BAR)
        colours = figure.colorbar(image, cax=bar, orientation="horizontal")
        colours.locator = MaxNLocator(4)
        colours.update_ticks()
        colours.outline.set_visible(False)
        bar.tick_params(labelsize=_TEXT - 1, length=2, pad=1.5, color=GREY)


def case_map_figure(case: CaseReport, width: float = 7.6) -> Figure:
    """Draw the maps as a figure of their own.

    Args:
        case: A case with maps.
        width: Width in inches.
    """
    height = min(map_height(case, width), 0.7 * width)
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    draw_case_maps(figure, case, 0.03, 0.0, width - 0.06, height)
    return figure


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Where the panels go: the slide large, and beside it a map, a column or a square of maps.

    Args:
        layers: The maps.
        columns: Maps in a row.
        lead: Width of the slide's panel in widths of a map's.
        ratio: Height of a panel in its widths.
    """

    layers: tuple[MapLayer, ...]
    columns: int
    lead: float
    ratio: float

    @staticmethod
    def of(case: CaseReport) -> "_Plan":
        view = _view(case)
        ratio = abs(view[2] - view[3]) / abs(view[1] - view[0])
        layers = _layers(case)
        columns, lead = {1: (1, 1.0), 2: (1, 2.0)}.get(len(layers), (2, 1.7))
        return _Plan(layers, columns, lead, ratio)

    @property
    def rows(self) -> int:
        return ceil(len(self.layers) / self.columns)

    def fitting(self, width: float) -> float:
        """Give the width of a map's panel for a width of all."""
        return (width - self.columns * _GAP) / (self.columns + self.lead)

    def height(self, panel: float) -> float:
        """Give the height of all for the width of a map's panel."""
        return self.rows * (panel * self.ratio + _TITLE + _LEGEND)

    def fitting_height(self, height: float) -> float:
        """Give the width of a map's panel for a height of all."""
        return max(0.1, (height / self.rows - _TITLE - _LEGEND) / self.ratio)


def _layers(case: CaseReport) -> tuple[MapLayer, ...]:
    if case.scores is None:
        return ()
    return map_layers(case.scores, case.predicted_index, case.predicted)


def _view(case: CaseReport) -> View:
    if case.scores is None or case.scores.coords is None or case.side is None:
        raise SgpmilError(why_no_maps(case))
    return shown_part(case.scores.coords, case.side)


def _draw_places(axes: Axes, case: CaseReport, view: View) -> None:
    title = "Slide, with the patches below" if case.picture.pixels is not None else "Patches below"
    _prepare(axes, view, title)
    if draw_slide(axes, case.picture) is None and case.scores is not None:
        layer = _layers(case)[0]
        _heat(axes, case, layer, "Greys", 3.0)
    draw_outlines(axes, case.picture)
    draw_scale_bar(axes, view, case.picture.mpp)
    for artist in axes.artists:
        if isinstance(artist, AnchoredSizeBar):
            artist.txt_label.get_children()[0].set_fontsize(_TEXT - 1.5)
    side = case.side or 1
    least = 0.022 * abs(view[1] - view[0])
    # A patch that is in several groups has one frame, of its first group's colour.
    colours: dict[tuple[int, int], str] = {}
    marks: dict[tuple[int, int], list[str]] = {}
    for group in case.patches:
        for patch in group.patches:
            if patch.corner is not None:
                colours.setdefault(patch.corner, MARK_COLOURS[group.kind])
                marks.setdefault(patch.corner, []).append(patch.mark)
    for corner in reversed(marks):
        size = max(side, least)
        x, y = (start + (side - size) / 2 for start in corner)
        axes.add_patch(Rectangle((x, y), size, size, fill=False, ec="white", lw=2.0))
        axes.add_patch(Rectangle((x, y), size, size, fill=False, ec=colours[corner], lw=1.1))
        axes.text(
            x + size / 2,
            y + size / 2,
            " ".join(marks[corner]),
            fontsize=_TEXT - 2.3,
            ha="center",
            va="center",
            color=colours[corner],
            weight="bold",
            path_effects=[withStroke(linewidth=1.4, foreground="white")],
        )


def _write_legend(
    figure: Figure, case: CaseReport, left: float, top: float, width: float, height: float
) -> None:
    """Say what frames, outlines and colours are, as far as there is room below the slide."""
    kinds = [group.kind for group in case.patches if group.patches]
    words = {"for": "F for the prediction", "against": "A against it", "unsure": "U unsure"}
    text = "Frames: " + ", ".join(words[kind] for kind in kinds) + ". " if kinds else ""
    if case.picture.outlines:
        text += f"Black outline: {case.picture.outlined}, drawn by experts. "
    if case.scores is not None and attention_values(case.scores)[1]:
        text += "Attention: 1 is the average patch. "
    if case.scores is not None and case.scores.evidence_mean is not None:
        text += f"Orange speaks for “{case.predicted}”, purple against it. "
    text += "Colours are scaled to this slide."
    size = _TEXT - 0.4
    whole, tall = (float(side) for side in figure.get_size_inches())
    sheet = Sheet(figure, 72 * whole, 72 * tall)
    lines = int(72 * height / (1.32 * size))
    if lines:
        sheet.words(
            72 * left, 72 * top, text, size, width=72 * width, most_lines=lines, colour="#444444"
        )


def _draw_layer(axes: Axes, case: CaseReport, view: View, layer: MapLayer) -> AxesImage:
    _prepare(axes, view, _TITLES[layer.kind])
    draw_slide(axes, case.picture, pale=True)
    image = _heat(axes, case, layer, _COLOURS[layer.kind], 1.0)
    draw_outlines(axes, case.picture)
    return image


def _prepare(axes: Axes, view: View, title: str) -> None:
    prepare_axes(axes, view, "")
    axes.set_title(title, fontsize=_TEXT + 0.4, loc="left", pad=3)


def _heat(axes: Axes, case: CaseReport, layer: MapLayer, colours: str, stretch: float) -> AxesImage:
    scores = case.scores
    if scores is None or scores.coords is None or case.side is None:
        raise SgpmilError(why_no_maps(case))
    end = stretch * map_limits([(scores, case.predicted_index)]).of(layer.kind)
    norm = Normalize(-end if layer.is_signed else 0.0, end)
    drawn = score_map(scores.coords, case.side, layer.values, most_pixels=_MOST_PIXELS)
    return draw_heat(axes, drawn, colours, norm, over_slide=case.picture.pixels is not None)
