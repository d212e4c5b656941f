"""Patches as GeoJSON, one square per patch: for QuPath and TIAToolbox."""

import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.exports.tables import PLACE_COLUMNS, patch_table
from sgpmil.explanation.maps import patch_side, placed_coords, scaled
from sgpmil.shapes import Float, Int

_AT_ONCE = 20_000
"""Patches to write at a time, which bounds the memory."""


def write_squares(
    path: str | os.PathLike[str],
    slide_id: str,
    coords: Int[np.ndarray, "N 2"],
    side: int,
    properties: Callable[[slice], Any],
) -> None:
    """Write a ``FeatureCollection`` with a closed square for every patch, a line each.

    The corners run counter-clockwise in the sense of RFC 7946 (which takes y to point up). The
    ``id`` of a feature is the UUID (version 5) of the slide's name and the patch's number, so
    that it is the same each time the slide is exported.

    Args:
        path: File to write; replaced whole where it exists.
        slide_id: Name of the slide.
        coords: Top-left corners of the patches.
        side: Side of a patch.
        properties: Gives the properties of some patches: an array of JSON objects as text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    namespace = uuid.uuid5(uuid.NAMESPACE_URL, f"sgpmil:{slide_id}")
    with (
        atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        file.write('{"type":"FeatureCollection","features":[\n')
        for first in range(0, len(coords), _AT_ONCE):
            part = slice(first, min(first + _AT_ONCE, len(coords)))
            ids = _uuids(namespace, part)
            left, top = (pa.array(coords[part, axis].astype(np.int64)) for axis in (0, 1))
            x0, y0, x1, y1 = (
                pc.cast(edge, pa.string())
                for edge in (left, top, pc.add(left, side), pc.add(top, side))
            )
            lines = pc.binary_join_element_wise(
                '{"type":"Feature","id":"',
                pa.array(ids),
                '","geometry":{"type":"Polygon","coordinates":[[[',
                *(x0, ",", y0, "],[", x1, ",", y0, "],["),
                *(x1, ",", y1, "],[", x0, ",", y1, "],[", x0, ",", y0),
                ']]]},"properties":',
                properties(part),
                "}",
                "",
            )
            file.write(",\n" if first else "")
            file.write(",\n".join(lines.to_pylist()))
        file.write("\n]}\n")


def _uuids(namespace: uuid.UUID, part: slice) -> list[str]:
    """Make what `uuid.uuid5` makes of the numbers of patches, in a third of its time."""
    start = namespace.bytes
    digests = b"".join(
        hashlib.sha1(start + str(k).encode(), usedforsecurity=False).digest()[:16]
        for k in range(part.start, part.stop)
    )
    octets = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 16).copy()
    octets[:, 6] = octets[:, 6] & 0x0F | 0x50  # version 5
    octets[:, 8] = octets[:, 8] & 0x3F | 0x80  # variant of RFC 4122
    text = octets.tobytes().hex()
    return [
        f"{text[i : i + 8]}-{text[i + 8 : i + 12]}-{text[i + 12 : i + 16]}"
        f"-{text[i + 16 : i + 20]}-{text[i + 20 : i + 32]}"
        for i in range(0, len(text), 32)
    ]


def json_fields(names: Sequence[str], columns: Sequence[Any]) -> Any:
    r"""Write the fields of one JSON object a row: ``"name":value,…`` without the braces.

    Text is quoted; numbers have as many digits as they need. A value that is missing, NaN or
    infinite, for which JSON has no word, is left out of its row.

    Returns:
        An array of text.

    Example:
        >>> import pyarrow as pa
        >>> columns = [pa.array([1, None]), pa.array([0.5, float("nan")]), pa.array(["a", 'b"'])]
        >>> json_fields(["n", "p", "t"], columns).to_pylist()
        ['"n":1,"p":0.5,"t":"a"', '"t":"b\\""']
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = []
    for name, column in zip(names, columns, strict=True):
        if pa.types.is_string(column.type):
            values = pa.array([None if v is None else json.dumps(v) for v in column.to_pylist()])
        else:
            if pa.types.is_floating(column.type):
                column = pc.if_else(pc.is_finite(column), column, None)
            values = pc.cast(column, pa.string())
        fields.append(pc.binary_join_element_wise(f"{json.dumps(name)}:", values, ""))
    return pc.binary_join_element_wise(*fields, ",", null_handling="skip")


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
        similarity: Similarity of the patch to it.
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


def write_tiatoolbox_overlay(
    path: str | os.PathLike[str],
    slide_id: str,
    scores: InstanceScores,
    class_names: Sequence[str],
    *,
    prototypes: Int[np.ndarray, " N"] | None = None,
    similarity: Float[np.ndarray, " N"] | None = None,
) -> None:
    r"""Write a slide's patches as GeoJSON that TIAToolbox's viewer lays over the slide.

    Put the file into the folder ``overlays`` beside the folder ``slides``; its name must contain
    that of the slide (``<slide>.geojson``). Then ``tiatoolbox visualize --base-path FOLDER``
    offers it, and `AnnotationStore.from_geojson` reads it.

    The viewer colours patches by a property of theirs that is a number between 0 and 1, and shows
    and hides them by their property ``type``. So the properties are flat: the score columns of
    `patch_table` and, of those that may lie outside that range, a scaled copy:

    - ``attention_mean_scaled``, ``attention_std_scaled``: from the slide's lowest to its highest
      (see `scaled`). Where a model's attention lies between 0 and 1, ``attention_mean`` itself
      can be coloured, and compared between slides.
    - ``margin_<class>_scaled``: $\frac12 + m_k / (2 \max_j |m_j|)$, so that 1/2 is no evidence.
    - ``novelty_scaled``: from the slide's lowest to its highest.

    ``single_probability_<class>`` lies between 0 and 1 already.

    The ``type`` is the patch's prototype ("prototype 7"), or "patch".

    Args:
        path: File to write (.geojson); replaced whole where it exists.
        slide_id: Name of the slide.
        scores: Scores of its patches, with coordinates.
        class_names: Name of each class.
        prototypes: Inducing point of each patch; negative where there is none.
        similarity: Similarity of the patch to it.

    Raises:
        ExplanationError: The scores have no coordinates, or the classes or prototypes do not fit
            them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = patch_table(slide_id, scores, class_names, prototypes=prototypes, similarity=similarity)
    types = ["patch"] * scores.num_instances
    if prototypes is not None:
        types = [f"prototype {p}" if p >= 0 else "patch" for p in prototypes.tolist()]
    table = table.drop_columns(list(PLACE_COLUMNS)).add_column(0, "type", pa.array(types))
    for name in ("attention_mean", "attention_std", "novelty"):
        if name not in table.column_names:
            continue
        values = table[name].to_numpy()
        table = table.append_column(f"{name}_scaled", pa.array(scaled(_known(values), "minmax")))
    if scores.evidence_mean is not None:
        for name in class_names:
            signed = _signed(_known(table[f"margin_{name}"].to_numpy()))
            table = table.append_column(f"margin_{name}_scaled", pa.array(signed))
    table = table.combine_chunks()

    def properties(part: slice) -> Any:
        rows = table.slice(part.start, part.stop - part.start)
        columns = [column.combine_chunks() for column in rows.columns]
        fields = json_fields(table.column_names, columns)
        return pc.binary_join_element_wise("{", fields, "}", "")

    write_squares(path, slide_id, placed_coords(scores), patch_side(scores), properties)


def _known(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return np.where(np.isfinite(values), values, np.nan)


def _signed(margin: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    largest = float(np.nanmax(np.abs(margin), initial=0.0))
    return 0.5 + 0.5 * margin / largest if largest > 0 else np.where(np.isnan(margin), margin, 0.5)
