"""Regions from ASAP's XML, in which the tumours of CAMELYON16 and CAMELYON17 are drawn."""

import os
import warnings
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from sgpmil.errors import AnnotationError
from sgpmil.shapes import Float
from sgpmil.slides.annotations.polygons import area_of_rings
from sgpmil.slides.annotations.regions import Region, SkippedRegionWarning

__all__ = ["read_asap_xml"]

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

    Args:
        path: File to read.

    Raises:
        AnnotationError: The file is missing, damaged, or not ASAP's.
    """
    file = Path(path)
    where = f"'{file}'"
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
            stacklevel=2,
        )
    return regions


def _region(element: ElementTree.Element, where: str) -> Region | None:
    if element.get("Type", "Polygon").lower() not in _AREAS:
        return None
    polygon = area_of_rings(_points(element, where))
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
    if not np.isfinite(points).all():
        raise AnnotationError(
            f"Expected numbers Order, X and Y at every corner of '{element.get('Name', '')}' in "
            f"{where}, but got an infinite one. Save the annotations again."
        )
    return points[np.argsort(points[:, 0], kind="stable"), 1:]
