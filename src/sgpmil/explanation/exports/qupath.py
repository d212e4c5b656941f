"""Patches as tiles with measurements, for QuPath."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.explanation.exports.patch_squares import json_fields, write_squares
from sgpmil.explanation.exports.tables import PLACE_COLUMNS, patch_table
from sgpmil.explanation.maps.placement import patch_side, placed_coords
from sgpmil.shapes import Float, Int

__all__ = ["write_qupath_geojson"]


def write_qupath_geojson(
    path: str | os.PathLike[str],
    slide_id: str,
    scores: InstanceScores,
    class_names: Sequence[str],
    *,
    offset: tuple[int, int] = (0, 0),
    prototypes: Int[np.ndarray, " N"] | None = None,
    similarity: Float[np.ndarray, " N"] | None = None,
    colours: Mapping[int, str] | None = None,
) -> None:
    """Write a slide's patches as GeoJSON that QuPath imports as locked tiles.

    Drag the file onto the open slide; *Measure > Show measurement maps* then colours the tiles.
    The measurements are the score columns of `patch_table`; one that is unknown for a patch is
    left out, for JSON has no NaN. Where there are prototypes, each tile is also classified by its
    own ("prototype 7").

    QuPath shows slides of some formats (as MIRAX) cropped to the part that was scanned, whose
    corner OpenSlide calls ``openslide.bounds-x`` and ``openslide.bounds-y``. Give these as the
    offset; it is subtracted from every coordinate.

    Args:
        path: File to write (.geojson); replaced whole where it exists.
        slide_id: Name of the slide; the tiles' UUIDs follow from it.
        scores: Scores of its patches, with coordinates.
        class_names: Name of each class.
        offset: Level-0 position (x, y) of what the viewer takes as the origin.
        prototypes: Inducing point of each patch; negative where there is none.
        similarity: How similar the patch is to it.
        colours: Colour of each inducing point, as "#RRGGBB"; QuPath chooses where there is none.

    Raises:
        ExplanationError: The scores have no coordinates, or the classes, prototypes or colours
            do not fit them.
    """
    table = patch_table(slide_id, scores, class_names, prototypes=prototypes, similarity=similarity)
    names = [name for name in table.column_names if name not in PLACE_COLUMNS]
    measured = table.select(names).combine_chunks()
    classes = None if prototypes is None else _classifications(prototypes, colours)

    def properties(part: slice) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = measured.slice(part.start, part.stop - part.start)
        columns = [column.combine_chunks() for column in rows.columns]
        opening = pa.array(['{"objectType":"tile","isLocked":true,'] * len(rows))
        if classes is not None:
            opening = pc.binary_join_element_wise(opening, pa.array(classes[part]), "")
        fields = json_fields(names, columns)
        return pc.binary_join_element_wise(opening, '"measurements":{', fields, "}}", "")

    corners = placed_coords(scores).astype(np.int64) - np.array(offset, dtype=np.int64)
    write_squares(path, slide_id, corners, patch_side(scores), properties)


def _classifications(
    prototypes: Int[np.ndarray, " N"], colours: Mapping[int, str] | None
) -> list[str]:
    """Give each patch's classification as a JSON field, with the comma that follows it."""
    texts = {}
    for index in np.unique(prototypes[prototypes >= 0]).tolist():
        content: dict[str, Any] = {"name": f"prototype {index}"}
        if colours is not None and index in colours:
            content["color"] = _channels(colours[index])
        texts[index] = f'"classification":{json.dumps(content)},'
    return [texts.get(index, "") for index in prototypes.tolist()]


def _channels(colour: str) -> list[int]:
    if not re.fullmatch("#[0-9A-Fa-f]{6}", colour):
        raise ExplanationError(
            f"Expected a colour as '#RRGGBB', but got '{colour}'. Write it in hexadecimal digits."
        )
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
