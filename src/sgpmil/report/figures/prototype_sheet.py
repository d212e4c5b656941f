"""A sheet of prototypes: the patches themselves, those most like them, and their numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sgpmil.errors import SlideError
from sgpmil.explanation.prototypes import PatchReference, PrototypeExplanation, PrototypeSummary
from sgpmil.report.figures.canvas import (
    GREY,
    LABEL_SIZE,
    SMALL_SIZE,
    TITLE_SIZE,
    new_figure,
    plain_words,
)
from sgpmil.report.figures.prototype_columns import entitle, number_columns
from sgpmil.report.figures.prototype_map import MEASURE_NAMES
from sgpmil.shapes import UInt8
from sgpmil.slides.reading import Slide

MOST = 12
"""Prototypes on a sheet."""
_EXAMPLES = 5
"""Examples of each."""
_ROW, _GAP = 0.72, 0.06
"""Height of a row of the sheet and the space around its pictures, in inches."""
_LABEL, _ORIGIN, _PANEL = 1.35, 0.95, 1.45
"""Widths of the names, of the words beside a prototype, and of a column of numbers, in inches."""

Pictures = Mapping[PatchReference, UInt8[np.ndarray, "size size 3"]]
"""Pictures of patches."""


def read_pictures(
    shown: Iterable[PrototypeSummary],
    open_slide: Callable[[str], Slide | None],
    *,
    size: int = 128,
) -> tuple[Pictures, tuple[str, ...]]:
    """Cut prototypes and their examples from the slides, each of which is opened once.

    Args:
        shown: The prototypes.
        open_slide: Opens a slide by its name, or gives None where there is none.
        size: Side of a picture in pixels.

    Returns:
        The pictures, and a sentence for each slide that is damaged.
    """
    wanted: dict[str, list[PatchReference]] = {}
    for prototype in shown:
        own = () if prototype.origin is None else (prototype.origin,)
        for patch in (*own, *prototype.examples[:_EXAMPLES]):
            wanted.setdefault(patch.slide_id, []).append(patch)
    pictures, problems = {}, []
    for slide_id, patches in wanted.items():
        try:
            slide = open_slide(slide_id)
            if slide is None:
                continue
            with slide:
                for patch in patches:
                    if patch.corner is not None and patch.side is not None:
                        pictures[patch] = slide.read_patch(*patch.corner, patch.side, size)
        except SlideError as error:
            problems.append(str(error))
    return pictures, tuple(problems)


def prototype_sheet(
    explanation: PrototypeExplanation,
    pictures: Pictures | None = None,
    *,
    most: int = MOST,
    title: str = "",
    fewest_labelled: int = 10,
) -> Figure:
    """Draw typical prototypes: where each comes from, its best examples, and its numbers.

    Args:
        explanation: The prototypes.
        pictures: Pictures of patches (see `read_pictures`); others are named.
        most: Most prototypes to draw.
        title: Title of the figure.
        fewest_labelled: Fewest labelled patches for which a share of positive ones is drawn.
    """
    shown = explanation.typical(most)
    found = pictures or {}
    columns = max(1, *(len(p.examples[:_EXAMPLES]) for p in shown))
    panels = number_columns(explanation, shown, fewest_labelled)
    origins = _ROW + _ORIGIN if explanation.are_patches else 0.0
    examples = columns * _ROW
    legend = 1.0 if explanation.nucleus_types else 0.1
    width = _LABEL + origins + examples + 0.25 + len(panels) * (_PANEL + 0.25) + legend
    top, bottom = 0.95, 0.4
    height = top + len(shown) * _ROW + bottom
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # the rows of all columns must be level

    def place(left: float, wide: float) -> Axes:
        return figure.add_axes(
            (left / width, bottom / height, wide / width, len(shown) * _ROW / height)
        )

    _draw_names(place(0.08, _LABEL - 0.08), shown, explanation)
    if explanation.are_patches:
        _draw_origins(place(_LABEL, origins), shown, found)
    _draw_examples(place(_LABEL + origins, examples), shown, columns, found)
    left = _LABEL + origins + examples + 0.25
    for draw in panels:
        axes = place(left, _PANEL)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_yticks([])
        axes.tick_params(labelsize=SMALL_SIZE - 1, color=GREY)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(GREY)
        draw(axes)
        left += _PANEL + 0.25
    note = f"{plain_words(title) + ': ' if title else ''}{_summary(explanation, len(shown))}"
    figure.text(0.08 / width, 1 - 0.12 / height, note, fontsize=TITLE_SIZE, va="top")
    return figure


def _summary(explanation: PrototypeExplanation, num_shown: int) -> str:
    used, total = len(explanation.used), len(explanation.prototypes)
    counts = (
        f"{used} prototypes in use ({total - used} of {total} unused); "
        f"{explanation.num_patches:,} patches, {MEASURE_NAMES[explanation.measure]}"
    )
    if num_shown == used:
        return f"the {counts}"
    chosen = "of each colour the most used, then those with the largest part in the attention"
    return f"{num_shown} of the {counts}\n({chosen})"


def _draw_names(
    axes: Axes, shown: Sequence[PrototypeSummary], explanation: PrototypeExplanation
) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(shown), 0)
    for row, prototype in enumerate(shown):
        axes.add_patch(
            Rectangle((0.0, row + 0.14), 0.14, 0.72, fc=prototype.colour, ec=GREY, lw=0.4)
        )
        axes.text(0.22, row + 0.3, f"{prototype.index}", fontsize=LABEL_SIZE, weight="bold",
                  va="center")  # fmt: skip
        axes.text(
            0.22,
            row + 0.66,
            f"{prototype.num_patches:,} {'patch' if prototype.num_patches == 1 else 'patches'}\n"
            f"{_percent(explanation.share(prototype))}, "
            f"{prototype.num_slides} {'slide' if prototype.num_slides == 1 else 'slides'}",
            fontsize=SMALL_SIZE - 1.5,
            va="center",
            color="#333333",
        )


def _draw_origins(axes: Axes, shown: Sequence[PrototypeSummary], pictures: Pictures) -> None:
    """Draw the training patches that prototypes are, with their places."""
    axes.set_axis_off()
    gap = _GAP / _ROW / 2
    for row, prototype in enumerate(shown):
        origin = prototype.origin
        if origin is None:
            continue
        if origin in pictures:
            extent = (gap, 1 - gap, row + 1 - gap, row + gap)
            axes.imshow(pictures[origin], extent=extent, aspect="auto")
        frame = Rectangle(
            (gap, row + gap), 1 - 2 * gap, 1 - 2 * gap, fc="none", ec="black", lw=1.2,
            ls="-" if origin in pictures else ":",
        )  # fmt: skip
        axes.add_patch(frame)
        if origin not in pictures:
            axes.text(0.5, row + 0.5, "no image", fontsize=6, ha="center", va="center", color=GREY)
        where = "" if origin.corner is None else "\nx {:,}\ny {:,}".format(*origin.corner)
        axes.text(
            1.04,
            row + 0.5,
            f"{plain_words(_shortened(origin.slide_id))}\npatch {origin.instance:,}{where}",
            fontsize=6,
            va="center",
            color="#333333",
        )
    axes.set_xlim(0, 1 + _ORIGIN / _ROW)
    axes.set_ylim(len(shown), 0)
    entitle(axes, "The prototype,\na training patch")


def _draw_examples(
    axes: Axes, shown: Sequence[PrototypeSummary], columns: int, pictures: Pictures
) -> None:
    axes.set_axis_off()
    gap = _GAP / _ROW / 2
    for row, prototype in enumerate(shown):
        for column, patch in enumerate(prototype.examples[:columns]):
            if patch in pictures:
                extent = (column + gap, column + 1 - gap, row + 1 - gap, row + gap)
                axes.imshow(pictures[patch], extent=extent, aspect="auto")
                continue
            axes.text(
                column + 0.5,
                row + 0.5,
                f"{plain_words(_shortened(patch.slide_id))}\n{patch.instance}",
                fontsize=6,
                ha="center",
                va="center",
                color="#333333",
            )
    axes.set_xlim(0, columns)
    axes.set_ylim(len(shown), 0)
    entitle(axes, "Most similar patches" if pictures else "Most similar patches: slide, number")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.0005 else "< 0.1 %"


def _shortened(name: str, most: int = 13) -> str:
    return name if len(name) <= most else f"{name[:7]}…{name[-5:]}"
