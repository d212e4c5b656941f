"""A map of a slide's prototypes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.maps import LabelMap, label_map, patch_side, placed_coords
from sgpmil.explanation.prototypes import PrototypeExplanation, SlidePrototypes
from sgpmil.report.figures.canvas import (
    GREY,
    SMALL_SIZE,
    TITLE_SIZE,
    new_figure,
    plain_words,
)
from sgpmil.report.figures.map_drawing import (
    draw_outlines,
    draw_scale_bar,
    draw_slide,
    draw_slide_panel,
    prepare_axes,
    shown_part,
)
from sgpmil.runs.slide_picture import SlidePicture

MEASURE_NAMES = {"kernel": "kernel correlation", "cosine": "cosine", "centred": "centred cosine"}
"""Measures of similarity in words."""


def label_map_figure(
    scores: InstanceScores,
    slide: SlidePrototypes,
    explanation: PrototypeExplanation,
    picture: SlidePicture | None = None,
    title: str = "",
) -> Figure:
    """Draw each patch in the colour of its prototype, beside the slide where there is one.

    Prototypes that resemble each other share a colour where more are in use than there are
    colours. Where patches overlap, the one most like its prototype lies on top.

    Args:
        scores: Scores of the slide's patches, for where they lie.
        slide: Prototypes of the patches.
        explanation: What the slide was explained with; it gives the colours.
        picture: The slide itself, and what experts outlined on it.
        title: Title of the slide; its name by default.

    Raises:
        ExplanationError: The scores have no coordinates, or are of another slide.
    """
    coords, side = placed_coords(scores), patch_side(scores)
    if scores.num_instances != slide.num_instances:
        raise ExplanationError(
            f"Expected scores of the {slide.num_instances} patches of '{slide.slide_id}', but "
            f"got {scores.num_instances}. Take both from the same slide."
        )
    picture = picture or SlidePicture()
    drawn = label_map(coords, side, slide.assigned, slide.similarity, most_pixels=1_000_000)
    view = shown_part(coords, side)
    ratio = abs((view[2] - view[3]) / (view[1] - view[0]))
    width = float(np.clip(4.6 / ratio, 2.6, 4.4))
    height = float(np.clip(width * ratio, 2.4, 6.0))
    columns = 1 + (picture.pixels is not None)
    figure = new_figure(columns * (width + 0.15) + 2.1, height + 0.85, pad=0.06)
    if picture.pixels is not None:
        draw_slide_panel(figure.add_subplot(1, columns, 1), view, picture)
    axes = figure.add_subplot(1, columns, columns)
    prepare_axes(axes, view, f"Most similar prototype ({MEASURE_NAMES[explanation.measure]})")
    draw_slide(axes, picture, pale=True)
    axes.set_facecolor("white")
    _draw_labels(axes, drawn, explanation)
    draw_outlines(axes, picture, legend=picture.pixels is None)
    if picture.pixels is None:
        draw_scale_bar(axes, view, picture.mpp)
    handles, names = _legend(slide, explanation)
    figure.legend(
        handles,
        names,
        loc="outside right center",
        fontsize=SMALL_SIZE,
        frameon=False,
        title="Prototypes: patches here",
        title_fontsize=SMALL_SIZE,
        alignment="left",
    )
    used, all_of_them = len(explanation.used), len(explanation.prototypes)
    figure.suptitle(
        f"{plain_words(title or slide.slide_id)} (n = {slide.num_instances:,} patches; {used} of "
        f"{all_of_them} prototypes used on {len(explanation.slides)} "
        f"{'slide' if len(explanation.slides) == 1 else 'slides'})",
        fontsize=TITLE_SIZE,
        x=0.01,
        ha="left",
    )
    return figure


def _draw_labels(axes: Axes, drawn: LabelMap, explanation: PrototypeExplanation) -> None:
    table = np.zeros((len(explanation.prototypes) + 1, 4), dtype=np.uint8)
    for number, colour in explanation.colours.items():
        table[number] = [round(255 * part) for part in (*to_rgb(colour), 1.0)]
    limits = axes.get_xlim(), axes.get_ylim()
    # NO_PATCH is -1, the last line of the table: transparent.
    axes.imshow(table[drawn.values], extent=drawn.extent, interpolation="nearest")
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])


def _legend(
    slide: SlidePrototypes, explanation: PrototypeExplanation
) -> tuple[list[Patch], list[str]]:
    counts = np.bincount(slide.assigned, minlength=len(explanation.prototypes))
    handles, names = [], []
    for group in explanation.groups:
        first, others = group[0], len(group) - 1
        more = "" if not others else f" and {others} {'other' if others == 1 else 'others'}"
        handles.append(Patch(fc=first.colour, ec=GREY, lw=0.4))
        names.append(f"{first.index}{more}: {counts[[p.index for p in group]].sum():,}")
    return handles, names
