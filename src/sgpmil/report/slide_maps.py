"""Maps of what a model saw, beside the slides themselves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.report.attention_figures import SlidePicture, attention_map_figure
from sgpmil.report.canvas import save_figure
from sgpmil.slides.annotations import AnnotationFolder, AnnotationMask, Annotations
from sgpmil.slides.reading import find_slides, open_slide

__all__ = ["write_slide_maps"]

_LONGEST = 1600
"""Longer side of a slide's picture, in pixels."""


def write_slide_maps(
    folder: Path,
    tables: Sequence[PredictionTable],
    slides: Path,
    annotations: AnnotationFolder | None = None,
    *,
    most: int = 4,
) -> list[Path]:
    """Draw attention and evidence of test slides beside the slides.

    Of each fold, the test slide that is surest to be of the last class.

    Args:
        folder: Where to write; made where it is missing.
        tables: Predictions of each fold's test set.
        slides: Folder of the slide files.
        annotations: What experts drew on them.
        most: Most slides to draw.

    Returns:
        The files written.
    """
    files = {path.stem: path for path in find_slides(slides)}
    written = []
    for table in tables[:most]:
        last = table.num_classes - 1
        chosen = max(table.predictions, key=lambda p: float(p.probs[last]))
        if chosen.instances is None or chosen.slide_id not in files:
            continue
        drawn = None
        if annotations is not None and chosen.slide_id in annotations:
            label = last if chosen.label is None else chosen.label
            drawn = annotations.read(chosen.slide_id, table.class_names[label])
        figure = attention_map_figure(
            chosen.instances,
            f"{chosen.slide_id}: {table.class_names[last]} {chosen.told(last)}",
            class_index=last,
            class_name=table.class_names[last],
            picture=_picture(files[chosen.slide_id], drawn),
        )
        written.append(folder / f"map-{chosen.slide_id}.png")
        save_figure(figure, written[-1])
    return written


def _picture(file: Path, drawn: Annotations | AnnotationMask | None) -> SlidePicture:
    with open_slide(file) as slide:
        pixels, size = slide.thumbnail(_LONGEST), slide.size
    if not isinstance(drawn, Annotations):
        return SlidePicture(pixels, size)
    rings: list[np.ndarray] = []
    for region in drawn.positive:
        for part in getattr(region.polygon, "geoms", [region.polygon]):
            rings += [np.array(ring.coords)[:, :2] for ring in (part.exterior, *part.interiors)]
    name = drawn.positive[0].name if drawn.positive else ""
    return SlidePicture(pixels, size, tuple(rings), name.lower() or "annotated")
