"""Parts of a map: the slide, scores as colours over it, outlines, marks, scale bar, colour bar."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal as PlainStroke
from matplotlib.patheffects import Stroke, withStroke
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar  # type: ignore[import-untyped]

from sgpmil.explanation.maps import ScoreMap
from sgpmil.report.figures.canvas import GREY, SMALL_SIZE, TITLE_SIZE, plain_words
from sgpmil.runs.slide_picture import SlidePicture
from sgpmil.shapes import Int, UInt8

View = tuple[float, float, float, float]
"""Part of the slide that is shown, in level-0 pixels: left, right, bottom, top."""

_CANVAS = "#c9c9c9"
_HEAT_ALPHA = 0.72
_PALE = 0.55
"""Share of its contrast that a slide keeps beneath a map."""
_LETTER, _TICK = 0.56, 4.5
"""Width of a letter, and of the number at a tick with space around it, in sizes of the font."""
_MARGIN, _NARROWEST = 0.03, 0.35
"""Of the longer side of what is shown: space around it, and the least of its shorter side."""


@dataclass(frozen=True, slots=True)
class PatchMark:
    """A framed patch with a sign, such as F1.

    Args:
        corner: Top-left corner of the patch in level-0 pixels.
        side: Side of the patch in level-0 pixels.
        sign: The sign.
        colour: Colour of frame and sign.
    """

    corner: tuple[int, int]
    side: int
    sign: str
    colour: str


def shown_part(coords: Int[np.ndarray, "N 2"], side: int) -> View:
    """Return the part of the slide that has patches, with a margin.

    Its shorter side is at least a third of its longer side: the core of a needle biopsy would
    leave no room for words.

    Args:
        coords: Top-left corners of the patches in level-0 pixels.
        side: Side of a patch in level-0 pixels.
    """
    low, high = coords.min(axis=0).astype(float), coords.max(axis=0) + float(side)
    longest = float((high - low).max())
    half = np.maximum((high - low) / 2 + _MARGIN * longest, _NARROWEST * longest / 2)
    x, y = (low + high) / 2
    return float(x - half[0]), float(x + half[0]), float(y + half[1]), float(y - half[1])


def in_lines(words: str, width: float | None, size: float) -> str:
    """Break words into lines that fit into a width.

    Args:
        words: The words.
        width: Width in inches; None for any.
        size: Size of the letters, in points.
    """
    if width is None:
        return words
    most = max(6, int(72 * width / (_LETTER * size)))
    return textwrap.fill(words, most, break_long_words=False, break_on_hyphens=False)


def prepare_axes(
    axes: Axes, view: View, title: str, text: float = 1.0, width: float | None = None
) -> None:
    """Make axes show a part of a slide, in its proportions and without ticks.

    Args:
        axes: The axes.
        view: Part of the slide.
        title: Title; it takes several lines where it is wider than the panel.
        text: Size of the letters, relative to the usual.
        width: Width of the panel in inches.
    """
    size = text * TITLE_SIZE
    words = plain_words(in_lines(title, width, size))
    axes.set_title(words, fontsize=size, loc="left", pad=6 * text)
    axes.set_xlim(view[0], view[1])
    axes.set_ylim(view[2], view[3])
    axes.set_aspect("equal", anchor="NW")  # where its title and colour bar begin
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor(_CANVAS)
    for spine in axes.spines.values():
        spine.set(color=GREY, linewidth=0.6)


def draw_slide(axes: Axes, picture: SlidePicture, *, pale: bool = False) -> AxesImage | None:
    """Draw the slide itself at its place.

    Args:
        axes: Axes in level-0 pixels.
        picture: The slide.
        pale: Whether to draw it as a light grey ground for colours.

    Returns:
        The image; None where there is no slide.
    """
    if picture.pixels is None or picture.size is None:
        return None
    axes.set_facecolor("white")
    width, height = picture.size
    pixels = _pale(picture.pixels) if pale else picture.pixels
    # imshow changes the limits; what is shown stays as it was prepared.
    limits = axes.get_xlim(), axes.get_ylim()
    image = axes.imshow(pixels, extent=(0, width, height, 0), interpolation="antialiased")
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
    return image


def draw_heat(
    axes: Axes, drawn: ScoreMap, colours: str, norm: Normalize, *, over_slide: bool
) -> AxesImage:
    """Draw scores as colours at their places; pixels without a score stay transparent.

    Args:
        axes: Axes in level-0 pixels.
        drawn: The scores.
        colours: Name of the colour map.
        norm: Limits of the colours.
        over_slide: Whether the slide lies beneath and shows through.
    """
    limits = axes.get_xlim(), axes.get_ylim()
    image = axes.imshow(
        np.ma.masked_invalid(drawn.values),
        extent=drawn.extent,
        cmap=colours,
        norm=norm,
        alpha=_HEAT_ALPHA if over_slide else 1.0,
        # A pixel of the map is a patch's or part of one: colours in between would be invented.
        interpolation="nearest",
    )
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
    return image


def draw_outlines(axes: Axes, picture: SlidePicture, *, legend: bool = False) -> None:
    """Draw the experts' outlines, visible on light and on dark.

    Args:
        axes: Axes in level-0 pixels.
        picture: The slide.
        legend: Whether to add a legend with the name of the regions.
    """
    halo = [Stroke(linewidth=2.4, foreground="white"), PlainStroke()]
    for corners in picture.outlines:
        closed = np.concatenate([corners, corners[:1]])
        axes.plot(
            closed[:, 0],
            closed[:, 1],
            color="black",
            lw=1.1,
            path_effects=halo,
            scalex=False,
            scaley=False,
        )
    if legend and picture.outlines:
        line = Line2D([], [], color="black", lw=1.2)
        axes.legend(
            [line],
            [plain_words(picture.outlined)],
            loc="upper right",
            fontsize=SMALL_SIZE,
            framealpha=0.85,
            borderpad=0.3,
            handlelength=1.4,
        )


def draw_scale_bar(
    axes: Axes,
    view: View,
    mpp: float | None,
    avoid: Int[np.ndarray, "N 2"] | None = None,
    text: float = 1.0,
) -> None:
    """Draw a bar of a round length: micrometres where the resolution is known, else pixels.

    Args:
        axes: Axes in level-0 pixels.
        view: What they show.
        mpp: Microns per level-0 pixel.
        avoid: Places that the bar should not cover: it takes the lower corner with fewer of them.
        text: Size of the letters, relative to the usual.
    """
    pixels, length = scale_bar_length(abs(view[1] - view[0]), mpp)
    bar = AnchoredSizeBar(
        axes.transData,
        pixels,
        length,
        loc="lower left" if avoid is None else _emptier_corner(view, avoid),
        pad=0.3,
        borderpad=0.35,
        sep=2,
        size_vertical=0.006 * abs(view[2] - view[3]),
        fontproperties=FontProperties(size=text * SMALL_SIZE),
    )
    bar.patch.set(alpha=0.85, linewidth=0)
    axes.add_artist(bar)


def draw_slide_panel(
    axes: Axes,
    view: View,
    picture: SlidePicture,
    title: str = "Slide",
    avoid: Int[np.ndarray, "N 2"] | None = None,
    text: float = 1.0,
) -> AxesImage | None:
    """Draw the slide with the experts' outlines, their legend and a scale bar.

    Returns:
        The image; None where there is no slide.
    """
    prepare_axes(axes, view, title, text)
    image = draw_slide(axes, picture)
    draw_outlines(axes, picture, legend=text == 1.0)  # small maps have it in their caption
    draw_scale_bar(axes, view, picture.mpp, avoid, text)
    return image


def draw_marks(axes: Axes, view: View, marks: Sequence[PatchMark], text: float = 1.0) -> None:
    """Frame patches and write their signs into the frames.

    A patch with several marks has one frame, in the colour of the first.
    """
    least = 0.022 * abs(view[1] - view[0])
    signs: dict[tuple[int, int], list[PatchMark]] = {}
    for mark in marks:
        signs.setdefault(mark.corner, []).append(mark)
    for corner, own in reversed(signs.items()):
        side, colour = own[0].side, own[0].colour
        size = max(side, least)
        x, y = (start + (side - size) / 2 for start in corner)
        axes.add_patch(Rectangle((x, y), size, size, fill=False, ec="white", lw=2.0))
        axes.add_patch(Rectangle((x, y), size, size, fill=False, ec=colour, lw=1.1))
        axes.text(
            x + size / 2,
            y + size / 2,
            " ".join(mark.sign for mark in own),
            fontsize=0.8 * text * SMALL_SIZE,
            ha="center",
            va="center",
            color=colour,
            weight="bold",
            path_effects=[withStroke(linewidth=1.4, foreground="white")],
        )


def scale_bar_length(width: float, mpp: float | None) -> tuple[float, str]:
    """Choose the length of a scale bar: 1, 2 or 5 of some power of ten, at most 30 % of the width.

    Args:
        width: Width of what is shown, in level-0 pixels.
        mpp: Microns per level-0 pixel; None where unknown.

    Returns:
        The length in level-0 pixels, and as text.

    Example:
        >>> scale_bar_length(40_000.0, 0.25)
        (8000.0, '2 mm')
        >>> scale_bar_length(500.0, None)
        (100.0, '100 px')
    """
    unit = 1.0 if mpp is None else mpp
    most = 0.3 * width * unit
    power = 10.0 ** floor(log10(most))
    length = max(step * power for step in (1, 2, 5) if step * power <= most * (1 + 1e-9))
    if mpp is None:
        return length, f"{length:,.0f} px" if length >= 1 else f"{length:g} px"
    return length / unit, f"{length / 1000:g} mm" if length >= 1000 else f"{length:g} µm"


def draw_colour_bar(
    figure: Figure,
    image: ScalarMappable,
    axes: Axes | list[Axes],
    label: str,
    text: float = 1.0,
    width: float | None = None,
) -> None:
    """Draw the colour bar beneath axes, with an arrow where scores exceed its limits.

    Args:
        figure: The figure.
        image: What has the colours.
        axes: The axes above it.
        label: Label; it takes several lines where it is wider than the panel.
        text: Size of the letters, relative to the usual.
        width: Width of the panel in inches.
    """
    size = text * SMALL_SIZE
    values: np.ndarray = np.ma.compressed(np.ma.masked_invalid(np.ma.asarray(image.get_array())))
    low, high = image.get_clim()
    below, above = bool((values < low).any()), bool((values > high).any())
    extend = "both" if below and above else "min" if below else "max" if above else "neither"
    bar = figure.colorbar(
        image, ax=axes, location="bottom", aspect=26, pad=0.025, extend=extend, shrink=0.92
    )
    bar.ax.tick_params(labelsize=size, color=GREY, length=2.5 * text, pad=3.5 * text)
    bar.ax.xaxis.get_offset_text().set_fontsize(size)
    most = 4 if width is None else int(72 * width / (_TICK * size))
    bar.locator = MaxNLocator(min(4, max(1, most)))
    formatter = ScalarFormatter(useMathText=False)
    formatter.set_powerlimits((-3, 4))
    bar.formatter = formatter
    bar.set_label(plain_words(in_lines(label, width, size)), fontsize=size)
    bar.update_ticks()
    bar.outline.set_visible(False)


def _emptier_corner(view: View, places: Int[np.ndarray, "N 2"]) -> str:
    left, right, bottom, top = view
    x, y = (places[:, 0] - left) / (right - left), (places[:, 1] - top) / (bottom - top)
    low = y > 0.75
    return "lower right" if (low & (x > 0.65)).sum() < (low & (x < 0.35)).sum() else "lower left"


def _pale(pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w 3"]:
    # Luma of ITU-R BT.601: the eye's weights of red, green and blue.
    grey = pixels @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    light = (255 - _PALE * (255 - grey)).round().astype(np.uint8)
    return np.repeat(light[..., None], 3, axis=2)
