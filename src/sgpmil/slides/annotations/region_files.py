"""Regions from ASAP's XML and from GeoJSON."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from sgpmil.errors import AnnotationError, damage_as
from sgpmil.shapes import Float
from sgpmil.slides.annotations.regions import Region, SkippedRegionWarning
from sgpmil.slides.optional_part import Geometry, require_package

_FEWEST_POINTS = 3
_MOST_CROSSINGS = 50_000
"""Times that an outline may cross itself. Drawn ones do a few times; the work grows with them."""
_CROSSINGS_AT_ONCE = 256
_FARTHEST = 2**31 - 1
"""Largest coordinate in pixels."""


def regular_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file, and of nothing that would never end, such as a pipe.

    Raises:
        AnnotationError: There is no such file.
    """
    if not Path(path).is_file():
        raise AnnotationError(
            f"Expected annotations in '{path}', but it cannot be read (there is no such file). "
            "Check the path."
        )
    return Path(path)


def area_of_rings(
    shell: Float[np.ndarray, "K 2"],
    holes: Sequence[Float[np.ndarray, "_ 2"]] = (),
    where: str = "an annotation",
) -> Geometry | None:
    """Make a valid area of drawn rings.

    A line that crosses itself encloses everything it goes around, once or more often: both
    lobes of a figure of eight, and the middle of a pentagram. (The even-odd rule would make a
    hole of the middle.)

    Args:
        shell: Corners of the outer ring, closed or not.
        holes: Corners of the rings that are cut out; those without an area are passed over.
        where: Place of the rings, for the message.

    Returns:
        A Polygon or MultiPolygon; None where fewer than three points or no area is left.

    Raises:
        AnnotationError: A ring crosses itself many thousand times.

    Example:
        >>> area_of_rings(np.array([[0.0, 0.0], [2.0, 2.0], [2.0, 0.0], [0.0, 2.0]])).area
        2.0
    """
    require_package("shapely")
    import shapely

    area = _area(shell, where)
    if area is None:
        return None
    cut_out = [hole for ring in holes if (hole := _area(ring, where)) is not None]
    if cut_out:
        area = shapely.difference(area, shapely.union_all(cut_out))
    return None if area.is_empty else area


def _area(points: Float[np.ndarray, "K 2"], where: str) -> Geometry | None:
    import shapely

    if len(np.unique(points, axis=0)) < _FEWEST_POINTS:
        return None
    polygon = shapely.Polygon(points)
    if not shapely.is_valid(polygon):
        _refuse_scribble(points, where)
    valid = shapely.make_valid(polygon, method="structure", keep_collapsed=False)
    parts = shapely.get_parts(valid)
    parts = parts[shapely.area(parts) > 0]
    return shapely.union_all(parts) if len(parts) else None


def _refuse_scribble(points: Float[np.ndarray, "K 2"], where: str) -> None:
    """Refuse a ring whose crossings would fill the memory, before they are computed."""
    import shapely

    segments = shapely.linestrings(np.stack([points, np.roll(points, -1, axis=0)], axis=1))
    tree = shapely.STRtree(segments)
    # Neighbours touch, and each crossing is found from both of its sides.
    count = -3 * len(segments)
    for start in range(0, len(segments), _CROSSINGS_AT_ONCE):
        part = segments[start : start + _CROSSINGS_AT_ONCE]
        count += len(tree.query(part, predicate="intersects")[0])
        if count > 2 * _MOST_CROSSINGS:
            raise AnnotationError(
                f"Expected outlines that cross themselves at most {_MOST_CROSSINGS} times, but one "
                f"of {len(points)} corners does more often ({where}). Draw it again, or remove it."
            )


_AREAS = ("polygon", "spline", "rectangle")


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuses a document type, whose entities can blow a small file up to fill the memory."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ElementTree.ParseError("it declares a document type")


def read_asap_xml(path: str | os.PathLike[str]) -> tuple[Region, ...]:
    """Read the regions of one slide; their names are ASAP's groups.

    ``Annotations/Annotation[@PartOfGroup]/Coordinates/Coordinate[@Order, @X, @Y]``: points are
    taken in their order. A spline is read as the polygon of its points. Objects that are no area
    (dots, measurements, fewer than three points) are left out with a warning.

    Raises:
        AnnotationError: The file is missing, damaged, or not ASAP's.
    """
    with damage_as(AnnotationError, "annotations as ASAP's XML", path, "Save them again as XML."):
        return _asap_regions(regular_file(path), f"'{path}'")


def _asap_regions(file: Path, where: str) -> tuple[Region, ...]:
    try:
        parser = ElementTree.XMLParser(target=_NoDoctype())  # noqa: S314 (a DTD is refused above)
        root = ElementTree.fromstring(file.read_bytes(), parser=parser)  # noqa: S314
    except (ElementTree.ParseError, OSError, LookupError, ValueError) as error:
        raise AnnotationError(
            f"Expected annotations as ASAP writes them in {where}, but it cannot be read "
            f"({error}). Save them again as XML."
        ) from error
    if root.tag != "ASAP_Annotations":
        raise AnnotationError(
            f"Expected XML of ASAP ('ASAP_Annotations') in {where}, but got '{root.tag}'. "
            "Export the annotations as ASAP XML or as GeoJSON."
        )
    drawn = [_region(element, where) for element in root.iter("Annotation")]
    regions = tuple(region for region in drawn if region is not None)
    if len(regions) < len(drawn):
        warnings.warn(
            f"Left out {len(drawn) - len(regions)} of {len(drawn)} objects without an area in "
            f"{where}.",
            SkippedRegionWarning,
            stacklevel=4,
        )
    return regions


def _region(element: ElementTree.Element, where: str) -> Region | None:
    if element.get("Type", "Polygon").lower() not in _AREAS:
        return None
    polygon = area_of_rings(_points(element, where), where=where)
    return None if polygon is None else Region(polygon, element.get("PartOfGroup", ""))


def _points(element: ElementTree.Element, where: str) -> Float[np.ndarray, "K 2"]:
    corners = []
    try:
        for position, corner in enumerate(element.iter("Coordinate")):
            order = float(corner.get("Order", position))
            corners.append((order, float(corner.attrib["X"]), float(corner.attrib["Y"])))
    except (KeyError, ValueError) as error:
        raise AnnotationError(
            f"Expected numbers Order, X and Y at every corner of '{element.get('Name', '')}' in "
            f"{where}, but got {error}. Save the annotations again."
        ) from error
    points = np.array(corners, dtype=np.float64).reshape(-1, 3)
    if not (np.abs(points) <= _FARTHEST).all():
        raise AnnotationError(
            f"Expected numbers Order, X and Y at every corner of '{element.get('Name', '')}' in "
            f"{where}, but got an infinite one. Save the annotations again."
        )
    return points[np.argsort(points[:, 0], kind="stable"), 1:]


def read_geojson(path: str | os.PathLike[str]) -> tuple[Region, ...]:
    """Read the regions of one slide; their names are QuPath's classes.

    A ``FeatureCollection``, a list of features or one feature, whose geometry is a ``Polygon``,
    a ``MultiPolygon`` or a ``GeometryCollection`` of them, in level-0 pixels. The name is
    ``properties.classification.name`` (or ``names``, joined by ": "). Objects that are no area
    (points, lines, fewer than three points) are left out with a warning.

    Raises:
        AnnotationError: The file is missing, damaged, or not GeoJSON.
    """
    with damage_as(AnnotationError, "annotations as GeoJSON", path, "Export them again."):
        return _geojson_regions(regular_file(path), f"'{path}'")


def _geojson_regions(file: Path, where: str) -> tuple[Region, ...]:
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
            stacklevel=4,
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
    """Yield the area of each polygon; None for objects without an area."""
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
        yield area_of_rings(points[0], points[1:], where) if points else None


def _ring(ring: Any, where: str) -> Float[np.ndarray, "K 2"]:
    try:
        corners = [(float(corner[0]), float(corner[1])) for corner in ring]
        points = np.array(corners, dtype=np.float64).reshape(-1, 2)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise AnnotationError(
            f"Expected the corners of every polygon in {where} as pairs of numbers, but got "
            f"something else ({error}). Export the annotations again."
        ) from error
    if not (np.abs(points) <= _FARTHEST).all():
        raise AnnotationError(
            f"Expected the corners of every polygon in {where} as pairs of numbers, but got an "
            "infinite one. Export the annotations again."
        )
    return points
