"""Nuclei found by HoVer-Net or CellViT, and their types in each patch.

::

    HoVer-Net            {"mag": 40, "nuc": {"1": {"centroid": [x, y], "type": 1, …}, …}}
    CellViT              {"type_map": {…}, "cells": [{"centroid": [x, y], "type": 1, …}, …]}
    CellViT, GeoJSON     [{"geometry": {"type": "MultiPoint", "coordinates": [[x, y], …]},
                           "properties": {"classification": {"name": "Neoplastic"}}}, …]

Centroids are level-0 pixels. Where a file of HoVer-Net states another magnification than the
slide's, they are scaled by the ratio of the two.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.bags.files import read_json
from sgpmil.errors import ExplanationError, reason_of
from sgpmil.shapes import Float, Int
from sgpmil.slides.optional_part import require_package

PANNUKE: Mapping[int, str] = {
    0: "Unlabelled",
    1: "Neoplastic",
    2: "Inflammatory",
    3: "Connective",
    4: "Dead",
    5: "Epithelial",
}
"""Types of nuclei in PanNuke, on which both networks are usually trained."""

_MOST_BYTES = 2**32
"""Size of the largest file: a slide of millions of nuclei with their outlines takes gigabytes."""
_AT_ONCE = 250_000


@dataclass(frozen=True, slots=True, eq=False)
class Nuclei:
    """The nuclei of one slide.

    Args:
        centroids: Centre (x, y) of each in level-0 pixels.
        types: Type of each, as a position in `type_names`.
        type_names: Names of the types.
    """

    centroids: Float[np.ndarray, "K 2"]
    types: Int[np.ndarray, " K"]
    type_names: tuple[str, ...]


def read_nuclei(
    path: str | os.PathLike[str],
    *,
    magnification: float | None = None,
    type_names: Mapping[int, str] = PANNUKE,
) -> Nuclei:
    """Read the nuclei of one slide; see the module's text for the formats.

    Args:
        path: File of HoVer-Net or CellViT (JSON), or CellViT's GeoJSON.
        magnification: Magnification of the slide's level 0, where known.
        type_names: Names of the types, for files that do not name them.

    Raises:
        ExplanationError: The file is missing, damaged, or something else.
    """
    where = f"'{Path(path)}'"
    try:
        content = read_json(Path(path), most_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise ExplanationError(
            f"Expected nuclei of HoVer-Net or CellViT as JSON in {where}, but it cannot be read "
            f"({error}). Write it again."
        ) from error
    scale = 1.0
    try:
        if isinstance(content, Mapping) and isinstance(content.get("nuc"), Mapping):
            rows = list(_typed(content["nuc"].values(), type_names))
            scale = _scale(content.get("mag"), magnification)
        elif isinstance(content, Mapping) and isinstance(content.get("cells"), list):
            names = {**type_names, **_type_map(content.get("type_map"))}
            rows = list(_typed(content["cells"], names))
        elif _is_geojson(content):
            features = content if isinstance(content, list) else content["features"]
            rows = [row for feature in features for row in _located(feature)]
        else:
            raise ExplanationError(
                f"Expected nuclei of HoVer-Net ('nuc') or CellViT ('cells', or GeoJSON) in "
                f"{where}, but got something else. Name the file that the network wrote."
            )
        centroids = np.array([row[0] for row in rows], dtype=np.float64).reshape(-1, 2)
        if centroids.shape[0] != len(rows) or not np.isfinite(centroids).all():
            raise ValueError("a centroid is not a pair of numbers")
    except ExplanationError:
        raise
    except Exception as error:  # damaged content fails in many ways, also within shapely
        raise ExplanationError(
            f"Expected a centroid [x, y] and a type of every nucleus in {where}, but got "
            f"something else ({type(error).__name__}: {reason_of(error)}). Write it again."
        ) from error
    names_of_rows = [row[1] for row in rows]
    found = tuple(dict.fromkeys(sorted(names_of_rows, key=_in_order(type_names))))
    number = {name: i for i, name in enumerate(found)}
    types = np.array([number[name] for name in names_of_rows], dtype=np.int64)
    return Nuclei(scale * centroids, types, found)


def nuclei_in_patches(
    nuclei: Nuclei, coords: Int[np.ndarray, "N 2"], patch_size: int
) -> Int[np.ndarray, "N K"]:
    r"""Count the nuclei of each type whose centre lies in each patch.

    A patch is $[x, x + s) \times [y, y + s)$; where patches overlap, a nucleus counts in each.

    Args:
        nuclei: The nuclei.
        coords: Top-left corner (x, y) of each patch in level-0 pixels.
        patch_size: Side s of a patch in level-0 pixels.

    Example:
        >>> nuclei = Nuclei(np.array([[1.0, 1.0], [4.0, 1.0]]), np.array([0, 1]), ("a", "b"))
        >>> nuclei_in_patches(nuclei, np.array([[0, 0], [3, 0]]), 4)
        array([[1, 0],
               [0, 1]])
    """
    num_types = len(nuclei.type_names)
    counts = np.zeros(len(coords) * num_types, dtype=np.int64)
    # A square of side s that holds the point begins in the point's cell of an s-grid, or in the
    # one to the left, above, or both.
    cells = np.floor_divide(coords, patch_size).astype(np.int64)
    width = int(cells[:, 1].max(initial=0) - cells[:, 1].min(initial=0)) + 3
    key = cells[:, 0] * width + cells[:, 1]
    order = np.argsort(key, kind="stable")
    in_order = key[order]
    for start in range(0, len(nuclei.types), _AT_ONCE):
        points = nuclei.centroids[start : start + _AT_ONCE]
        kinds = nuclei.types[start : start + _AT_ONCE]
        home = np.floor_divide(points, patch_size).astype(np.int64)
        for left in (0, 1):
            for above in (0, 1):
                wanted = (home[:, 0] - left) * width + home[:, 1] - above
                first = np.searchsorted(in_order, wanted, side="left")
                number = np.searchsorted(in_order, wanted, side="right") - first
                point = np.repeat(np.arange(len(points)), number)
                step = np.arange(len(point)) - np.repeat(np.cumsum(number) - number, number)
                patch = order[first[point] + step]
                offset = points[point] - coords[patch]
                # Keys of far rows may coincide: the patch itself decides.
                inside = ((offset >= 0) & (offset < patch_size)).all(axis=1)
                pair = patch[inside] * num_types + kinds[point[inside]]
                counts += np.bincount(pair, minlength=len(counts))
    return counts.reshape(len(coords), num_types)


def _typed(entries: Any, type_names: Mapping[int, str]) -> Iterator[tuple[Sequence[float], str]]:
    for entry in entries:
        x, y = entry["centroid"]
        kind = entry.get("type")
        if isinstance(kind, str) and not kind.isdigit():
            yield (x, y), kind
            continue
        number = 0 if kind is None else int(kind)
        yield (x, y), type_names.get(number, f"Type {number}")


def _type_map(found: Any) -> dict[int, str]:
    """Read CellViT's names of types, which it writes either way round."""
    if not isinstance(found, Mapping):
        return {}
    pairs = ((key, value) if str(key).isdigit() else (value, key) for key, value in found.items())
    return {int(number): str(name) for number, name in pairs}


def _is_geojson(content: Any) -> bool:
    features = content.get("features") if isinstance(content, Mapping) else content
    return isinstance(features, list) and all(
        isinstance(feature, Mapping) and "geometry" in feature for feature in features
    )


def _located(feature: Mapping[str, Any]) -> Iterator[tuple[Sequence[float], str]]:
    """Give the centres of a GeoJSON feature's points or polygons."""
    classification = (feature.get("properties") or {}).get("classification") or {}
    name = classification if isinstance(classification, str) else classification.get("name")
    kind, places = feature["geometry"]["type"], feature["geometry"]["coordinates"]
    if kind in ("Point", "MultiPoint"):
        for place in [places] if kind == "Point" else places:
            yield place[:2], str(name or PANNUKE[0])
        return
    if kind not in ("Polygon", "MultiPolygon"):
        raise ValueError(f"a geometry of type {kind}")
    require_package("shapely")
    import shapely

    for rings in [places] if kind == "Polygon" else places:
        centre = shapely.centroid(shapely.Polygon(rings[0], rings[1:]))
        yield (centre.x, centre.y), str(name or PANNUKE[0])


def _scale(stated: Any, magnification: float | None) -> float:
    if stated is None or magnification is None:
        return 1.0
    if not float(stated) > 0:
        raise ValueError(f"a magnification of {stated}")
    return magnification / float(stated)


def _in_order(type_names: Mapping[int, str]) -> Any:
    """Order names of types as their numbers are, and others by name after them."""
    number = {name: i for i, name in type_names.items()}
    return lambda name: (number.get(name, len(number)), name)
