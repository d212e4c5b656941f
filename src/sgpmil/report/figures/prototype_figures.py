"""Figures of prototypes: a map of a slide's prototypes, and a sheet of examples and numbers."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.maps import LabelMap, label_map, patch_side, placed_coords
from sgpmil.explanation.prototypes import (
    NEUTRAL,
    PALETTE,
    PatchReference,
    PrototypeExplanation,
    PrototypeSummary,
    SlidePrototypes,
)
from sgpmil.report.figures.canvas import (
    COLOURS,
    GREY,
    LABEL_SIZE,
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
from sgpmil.shapes import UInt8
from sgpmil.slides.reading import Slide

_MEASURES = {"cosine": "cosine", "centred": "centred cosine", "kernel": "kernel correlation"}
_ROW, _GAP = 0.72, 0.06
"""Height of a row of the sheet and the space around its pictures, in inches."""
_LABEL, _PANEL = 1.35, 1.45
"""Widths of the sheet's first column and of a column of numbers, in inches."""


def label_map_figure(
    scores: InstanceScores,
    slide: SlidePrototypes,
    explanation: PrototypeExplanation,
    picture: SlidePicture | None = None,
    title: str = "",
) -> Figure:
    """Draw each patch in the colour of its prototype, beside the slide where there is one.

    Where patches overlap, the one most like its prototype lies on top.

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
    prepare_axes(axes, view, f"Most similar prototype ({_MEASURES[explanation.measure]})")
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
        title="Prototype: patches here",
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


def prototype_sheet(
    explanation: PrototypeExplanation,
    open_slide: Callable[[str], Slide | None] = lambda _: None,
    *,
    most: int = 8,
    title: str = "",
    fewest_labelled: int = 10,
    picture_size: int = 128,
) -> Figure:
    """Draw the most used prototypes: their best examples, and what each stands for and does.

    Args:
        explanation: The prototypes.
        open_slide: Opens a slide by its name, or gives None where there is none; the names of
            the patches then stand in for their pictures.
        most: Most prototypes to draw.
        title: Title of the figure.
        fewest_labelled: Fewest labelled patches for which a share of cancer is drawn.
        picture_size: Side of a patch's picture in pixels.

    Raises:
        SlideError: A slide is damaged where a patch lies.
    """
    shown = explanation.used[:most]
    columns = max(1, max(len(p.examples) for p in shown))
    panels = number_columns(explanation, shown, fewest_labelled)
    examples = columns * _ROW
    legend = 1.0 if explanation.nucleus_types else 0.1
    width = _LABEL + examples + 0.25 + len(panels) * (_PANEL + 0.25) + legend
    top, bottom = 0.95, 0.4
    height = top + len(shown) * _ROW + bottom
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # the rows of all columns must be level

    def place(left: float, wide: float) -> Axes:
        return figure.add_axes(
            (left / width, bottom / height, wide / width, len(shown) * _ROW / height)
        )

    _draw_names(place(0.08, _LABEL - 0.08), shown, explanation)
    _draw_examples(place(_LABEL, examples), shown, columns, _read(shown, open_slide, picture_size))
    left = _LABEL + examples + 0.25
    for draw in panels:
        axes = place(left, _PANEL)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_yticks([])
        axes.tick_params(labelsize=SMALL_SIZE - 1, color=GREY)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(GREY)
        draw(axes)
        left += _PANEL + 0.25
    used, total = len(explanation.used), len(explanation.prototypes)
    which = "the" if len(shown) == used else f"the {len(shown)} most used of"
    note = (
        f"{plain_words(title) + ': ' if title else ''}{which} {used} prototypes in use "
        f"({total - used} of {total} unused); {explanation.num_patches:,} patches, "
        f"{_MEASURES[explanation.measure]}"
    )
    figure.text(0.08 / width, 1 - 0.12 / height, note, fontsize=TITLE_SIZE, va="top")
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
    coloured = [p.index for p in explanation.used[: len(PALETTE)]]
    handles = [Patch(fc=explanation.colour_of(number), ec=GREY, lw=0.4) for number in coloured]
    names = [f"{number}: {counts[number]:,}" for number in coloured]
    others = [p.index for p in explanation.used[len(PALETTE) :]]
    if others:
        handles.append(Patch(fc=NEUTRAL, ec=GREY, lw=0.4))
        names.append(f"{len(others)} others: {counts[others].sum():,}")
    return handles, names


def _read(
    shown: Sequence[PrototypeSummary],
    open_slide: Callable[[str], Slide | None],
    size: int,
) -> dict[PatchReference, UInt8[np.ndarray, "size size 3"]]:
    """Cut patches from the slides, each of which is opened once."""
    wanted: dict[str, list[PatchReference]] = {}
    for prototype in shown:
        for patch in prototype.examples:
            if patch.corner is not None and patch.side is not None:
                wanted.setdefault(patch.slide_id, []).append(patch)
    pictures = {}
    for slide_id, patches in wanted.items():
        slide = open_slide(slide_id)
        if slide is None:
            continue
        with slide:
            for patch in patches:
                if patch.corner is not None and patch.side is not None:
                    pictures[patch] = slide.read_patch(*patch.corner, patch.side, size)
    return pictures


def _draw_names(
    axes: Axes, shown: Sequence[PrototypeSummary], explanation: PrototypeExplanation
) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(shown), 0)
    share = max(1, explanation.num_patches)
    for row, prototype in enumerate(shown):
        colour = explanation.colour_of(prototype.index)
        axes.add_patch(Rectangle((0.0, row + 0.14), 0.14, 0.72, fc=colour, ec=GREY, lw=0.4))
        axes.text(0.22, row + 0.3, f"{prototype.index}", fontsize=LABEL_SIZE, weight="bold",
                  va="center")  # fmt: skip
        axes.text(
            0.22,
            row + 0.66,
            f"{prototype.num_patches:,} {'patch' if prototype.num_patches == 1 else 'patches'}\n"
            f"{_percent(prototype.num_patches / share)}, "
            f"{prototype.num_slides} {'slide' if prototype.num_slides == 1 else 'slides'}",
            fontsize=SMALL_SIZE - 1.5,
            va="center",
            color="#333333",
        )


def _draw_examples(
    axes: Axes,
    shown: Sequence[PrototypeSummary],
    columns: int,
    pictures: Mapping[PatchReference, UInt8[np.ndarray, "size size 3"]],
) -> None:
    axes.set_axis_off()
    gap = _GAP / _ROW / 2
    for row, prototype in enumerate(shown):
        for column, patch in enumerate(prototype.examples):
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
    what = "Most similar patches" if pictures else "Most similar patches: slide, number"
    entitle(axes, what)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.0005 else "< 0.1 %"


def _shortened(name: str, most: int = 13) -> str:
    return name if len(name) <= most else f"{name[:7]}…{name[-5:]}"


_NUCLEUS_COLOURS = {
    "Neoplastic": COLOURS[1],
    "Inflammatory": COLOURS[0],
    "Connective": COLOURS[2],
    "Dead": COLOURS[6],
    "Epithelial": COLOURS[4],
    "Unlabelled": NEUTRAL,
}
_OTHER_NUCLEI = (COLOURS[3], COLOURS[5], COLOURS[7])


def number_columns(
    explanation: PrototypeExplanation, shown: Sequence[PrototypeSummary], fewest_labelled: int
) -> list[Callable[[Axes], None]]:
    """Choose the columns: those for which anything is known.

    Args:
        explanation: The prototypes.
        shown: Those of the rows, from the top.
        fewest_labelled: Fewest labelled patches for which a share of cancer is drawn.

    Returns:
        What draws each column on axes whose rows are at 0, 1, 2 and so on.
    """
    panels: list[Callable[[Axes], None]] = []
    if any(p.num_labelled for p in explanation.prototypes):
        panels.append(lambda axes: _draw_cancer(axes, shown, fewest_labelled))
    if any(np.isfinite(p.relative_attention) for p in shown):
        panels.append(lambda axes: _draw_attention(axes, shown))
    panels.append(lambda axes: _draw_contributions(axes, shown))
    panels.append(lambda axes: _draw_logits(axes, shown, explanation.mean_logit))
    if explanation.nucleus_types:
        panels.append(lambda axes: _draw_nuclei(axes, shown, explanation.nucleus_types))
    return panels


def _draw_cancer(axes: Axes, shown: Sequence[PrototypeSummary], fewest: int) -> None:
    for row, prototype in enumerate(shown):
        share = prototype.cancer_share(fewest)
        axes.barh(row, 1, height=0.34, color="#eeeeee")
        if np.isnan(share):
            text = f"only {prototype.num_labelled} labelled"
        else:
            axes.barh(row, share, height=0.34, color=COLOURS[1])
            text = f"{100 * share:.0f} % of {prototype.num_labelled:,}"
        axes.text(0, row - 0.24, text, fontsize=SMALL_SIZE - 1.5, va="bottom")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    entitle(axes, "Cancerous patches")


def _draw_attention(axes: Axes, shown: Sequence[PrototypeSummary]) -> None:
    values = np.array([p.relative_attention for p in shown])
    axes.axvline(1, color=GREY, lw=0.8, ls=":")
    for row, value in enumerate(values):
        if value > 0:  # neither 0 nor unknown, which a log scale cannot show
            axes.plot(value, row, "o", ms=5.5, color=COLOURS[0])
        text = "unknown" if np.isnan(value) else f"{value:.2g}"
        _annotate(axes, float(np.nanmax([value, 1e-3])) if value > 0 else 1.0, row, text)
    within = values[values > 0]
    axes.set_xscale("log")
    axes.set_xlim(min([0.4, *within / 1.8]), max([2.5, *within * 1.8]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    entitle(axes, "Attention of its patches,\n× the slide's mean")


def _draw_contributions(axes: Axes, shown: Sequence[PrototypeSummary]) -> None:
    values = np.array([p.own_contribution for p in shown])
    axes.axvline(0, color=GREY, lw=0.8)
    for row, value in enumerate(values):
        axes.barh(row, value, height=0.26, color=COLOURS[2] if value >= 0 else COLOURS[3])
        _annotate(axes, 0.0, row, f"{value:+.2g}".replace("-", "−"))
    _symmetric(axes, float(np.abs(values).max()))
    entitle(axes, "Its part in their\nattention logit")


def _draw_logits(axes: Axes, shown: Sequence[PrototypeSummary], mean: float) -> None:
    values = np.array([p.logit_at for p in shown])
    spread = np.array([p.logit_at_sd for p in shown])
    axes.axvline(mean, color=GREY, lw=0.8, ls=":")
    axes.errorbar(
        values, np.arange(len(shown)), xerr=spread, fmt="o", ms=5.5, color=COLOURS[0], lw=1.2,
        capsize=2,
    )  # fmt: skip
    for row, value in enumerate(values):
        _annotate(axes, value, row, f"{value:.2f} ± {spread[row]:.2f}".replace("-", "−"))
    low, high = min((values - spread).min(), mean), max((values + spread).max(), mean)
    margin = 0.15 * max(high - low, 1e-6)
    axes.set_xlim(low - margin, high + margin)
    axes.locator_params(axis="x", nbins=4)
    entitle(axes, "Attention logit at\nthe prototype ± sd")


def _annotate(axes: Axes, x: float, row: int, text: str) -> None:
    axes.annotate(
        text,
        (x, row),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=SMALL_SIZE - 1.5,
        bbox={"fc": "white", "ec": "none", "pad": 0.6},
        annotation_clip=False,
    )


def _symmetric(axes: Axes, largest: float) -> None:
    """Show as much to the left of zero as to the right, with three ticks that do not collide."""
    reach = 1.25 * max(largest, 1e-12)
    axes.set_xlim(-reach, reach)
    power = 10.0 ** np.floor(np.log10(0.8 * reach))
    tick = max(step * power for step in (1, 2, 5) if step * power <= 0.81 * reach)
    axes.set_xticks([-tick, 0, tick], [f"−{tick:g}", "0", f"{tick:g}"])


def entitle(axes: Axes, text: str) -> None:
    """Set the title of a column."""
    axes.set_title(text, fontsize=SMALL_SIZE, loc="left", pad=6)


def _draw_nuclei(axes: Axes, shown: Sequence[PrototypeSummary], types: Sequence[str]) -> None:
    others = [name for name in types if name not in _NUCLEUS_COLOURS]
    colours = _NUCLEUS_COLOURS | {
        name: _OTHER_NUCLEI[number % len(_OTHER_NUCLEI)] for number, name in enumerate(others)
    }
    for row, prototype in enumerate(shown):
        total = sum(prototype.nuclei)
        start = 0.0
        for name, count in zip(types, prototype.nuclei, strict=True):
            share = count / total if total else 0.0
            axes.barh(row, share, left=start, height=0.34, color=colours[name])
            start += share
        axes.text(0, row - 0.24, f"{total:,} nuclei", fontsize=SMALL_SIZE - 1.5, va="bottom")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    entitle(axes, "Nucleus types")
    axes.legend(
        [Patch(fc=colours[name]) for name in types],
        list(types),
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        fontsize=SMALL_SIZE - 1,
        frameon=False,
    )
