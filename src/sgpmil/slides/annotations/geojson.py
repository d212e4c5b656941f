"""Regions from GeoJSON, as QuPath exports them."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.errors import AnnotationError
from sgpmil.shapes import Float
from sgpmil.slides.annotations.polygons import area_of_rings
from sgpmil.slides.annotations.regions import Region, SkippedRegionWarning

__all__ = ["read_geojson"]


def read_geojson(path: str | os.PathLike[str]) -> tuple[Region, ...]:
    """Read the regions of one slide; their names are QuPath's classes.

    A ``FeatureCollection``, a list of features or one feature, whose geometry is a ``Polygon``,
    a ``MultiPolygon`` or a ``GeometryCollection`` of them, in level-0 pixels. The name is
    ``properties.classification.name`` (or ``names``, joined by ": "). Objects that are no area
    (points, lines, fewer than three points) are left out with a warning.

    Args:
        path: File to read.

    Raises:
        AnnotationError: The file is missing, damaged, or not GeoJSON.
    """
    file = Path(path)
    where = f"'{file}'"
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise AnnotationError(
            f"Expected annotations as GeoJSON in {where}, but it cannot be read ({error}). "
            "Export them again."
        ) from error
    regions, num_skipped = [], 0
    for feature in _features(content, where):
        name = _class_name(feature)
        areas = list(_areas(feature.get("geometry"), where))
        found = [Region(area, name) for area in areas if area is not None]
        num_skipped += len(areas) - len(found)
        regions += found
    if num_skipped:
        warnings.warn(
            f"Left out {num_skipped} of {num_skipped + len(regions)} objects without an area in "
            f"{where}.",
            SkippedRegionWarning,
            stacklevel=2,
        )
    return tuple(regions)


def _features(content: Any, where: str) -> list[Mapping[str, Any]]:
    if isinstance(content, Mapping):
        content = content.get("features", [content])
    is_list = isinstance(content, list)
    if not is_list or not all(isinstance(f, Mapping) and "geometry" in f for f in content):
        raise AnnotationError(
            f"Expected a FeatureCollection or a list of features in {where}, but got something "
            "else. Export the annotations as GeoJSON."
        )
    return list(content)


def _class_name(feature: Mapping[str, Any]) -> str:
    properties = feature.get("properties")
    found = properties.get("classification") if isinstance(properties, Mapping) else None
    if isinstance(found, str):
        return found
    if not isinstance(found, Mapping):
        return ""
    names = found.get("names")
    joined = ": ".join(map(str, names)) if isinstance(names, list) else ""
    return str(found.get("name") or joined)


def _areas(geometry: Any, where: str) -> Iterator[Any | None]:
    """Give the area of each polygon; None for what is no area."""
    kind = geometry.get("type") if isinstance(geometry, Mapping) else None
    if kind == "GeometryCollection":
        for part in geometry.get("geometries", []):
            yield from _areas(part, where)
        return
    if kind not in ("Polygon", "MultiPolygon"):
        yield None
        return
    polygons = geometry.get("coordinates") or []
    for rings in [polygons] if kind == "Polygon" else polygons:
        points = [_ring(ring, where) for ring in rings]
        yield area_of_rings(points[0], points[1:]) if points else None


def _ring(ring: Any, where: str) -> Float[np.ndarray, "K 2"]:
    try:
        corners = [(float(corner[0]), float(corner[1])) for corner in ring]
        points = np.array(corners, dtype=np.float64).reshape(-1, 2)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise AnnotationError(
            f"Expected the corners of every polygon in {where} as pairs of numbers, but got "
            f"something else ({error}). Export the annotations again."
        ) from error
    if not np.isfinite(points).all():
        raise AnnotationError(
            f"Expected the corners of every polygon in {where} as pairs of numbers, but got an "
            "infinite one. Export the annotations again."
        )
    return points
