"""Patches as GeoJSON: a square feature a patch, written as they come."""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.shapes import Int

__all__ = ["json_fields", "write_squares"]

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

    Args:
        names: Name of each field.
        columns: Values of each field: arrays of `pyarrow`.

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
