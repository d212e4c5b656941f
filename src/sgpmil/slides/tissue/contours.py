"""Contours of tissue, and their GeoJSON files."""

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sgpmil.bags.files import write_text
from sgpmil.shapes import Bool, Float
from sgpmil.slides.annotations.region_files import read_geojson
from sgpmil.slides.optional_part import Geometry, require_package


@dataclass(frozen=True, slots=True, eq=False)
class Tissue:
    """The tissue of a slide.

    Args:
        area: A valid shapely Polygon or MultiPolygon in level-0 pixels; empty without tissue.
    """

    area: Geometry


def outline(
    mask: Bool[np.ndarray, "h w"],
    x_edges: Float[np.ndarray, " w_plus_1"],
    y_edges: Float[np.ndarray, " h_plus_1"],
) -> Geometry:
    """Return the area that the pixels of a mask cover, along the edges of the pixels.

    Args:
        mask: Mask of the covered pixels.
        x_edges: Left edge of each column, and the right edge of the last.
        y_edges: Upper edge of each row, and the lower edge of the last.

    Returns:
        A valid MultiPolygon with holes, whose area is exactly that of the pixels.

    Example:
        >>> edges = np.array([0.0, 4.0, 8.0])
        >>> outline(np.eye(2, dtype=bool), edges, edges).area
        32.0
    """
    require_package("shapely")
    require_package("cv2")
    import cv2
    import shapely

    # OpenCV walks along the centres of pixels. With every pixel doubled, the first of a pair
    # stands for its near edge and the second for its far edge: 2c and 2c + 1 become c and c + 1.
    doubled = np.repeat(np.repeat(mask.astype(np.uint8), 2, axis=0), 2, axis=1)
    contours, links = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    if not contours:
        return shapely.MultiPolygon()
    corners = (np.concatenate(contours).reshape(-1, 2) + 1) // 2
    points = np.stack([x_edges[corners[:, 0]], y_edges[corners[:, 1]]], axis=1)
    owner = np.repeat(np.arange(len(contours)), [len(contour) for contour in contours])
    rings = shapely.remove_repeated_points(shapely.linearrings(points, indices=owner))

    parent = np.asarray(links).reshape(-1, 4)[:, 3]
    holes: dict[int, list[Geometry]] = {}
    for ring, shell in zip(rings[parent >= 0], parent[parent >= 0].tolist(), strict=True):
        holes.setdefault(shell, []).append(ring)
    areas = np.array(
        [
            shapely.Polygon(rings[shell], holes.get(shell))
            for shell in np.flatnonzero(parent < 0).tolist()
        ]
    )
    # Where pixels touch only at a corner, a ring touches itself there.
    crossed = ~shapely.is_valid(areas)
    areas[crossed] = shapely.make_valid(areas[crossed])
    parts = shapely.get_parts(shapely.get_parts(areas))
    return shapely.MultiPolygon(list(parts[shapely.area(parts) > 0]))


_CUT_OUT = ("ignore", "exclude", "exclusion", "background", "artefact", "artifact", "hole")
_COLOUR = (0, 160, 80)
_NAMESPACE = uuid.UUID("3c1d9a52-6d0e-5b7c-9a41-6a8d6f1f3f10")


def write_contours(path: str | os.PathLike[str], tissue: Tissue) -> None:
    """Write the contours of a slide's tissue, each piece one annotation with its holes.

    A ``FeatureCollection`` of polygons in level-0 pixels, of the class "tissue". The same tissue
    gives the same bytes: pieces, corners and ids follow from the area alone.

    Raises:
        OSError: The file cannot be written.
    """
    require_package("shapely")
    import shapely

    pieces = [shapely.normalize(piece) for piece in shapely.get_parts(tissue.area)]
    pieces.sort(key=lambda piece: (piece.bounds[1], piece.bounds[0], piece.wkb))
    features = [
        {
            "type": "Feature",
            "id": str(uuid.uuid5(_NAMESPACE, piece.wkb_hex)),
            "geometry": {
                "type": "Polygon",
                "coordinates": [
                    [[_number(x), _number(y)] for x, y in ring.coords]
                    for ring in (piece.exterior, *piece.interiors)
                ],
            },
            "properties": {
                "objectType": "annotation",
                "classification": {"name": "tissue", "color": list(_COLOUR)},
                "isLocked": False,
            },
        }
        for piece in pieces
    ]
    # A line for each piece: an edited file can be compared with the one before.
    lines = ",\n".join(json.dumps(feature, separators=(",", ":")) for feature in features)
    write_text(Path(path), f'{{"type":"FeatureCollection","features":[\n{lines}\n]}}\n')


def read_contours(path: str | os.PathLike[str]) -> Tissue:
    """Read the contours of a slide's tissue, also as edited in QuPath or drawn by other tools.

    Regions whose class is named like a hole (Ignore*, exclude, background, artefact, …) are cut
    out of all others; regions of any other class are tissue.

    Raises:
        AnnotationError: The file is missing, damaged, or not GeoJSON.
    """
    require_package("shapely")
    import shapely

    regions = read_geojson(path)
    tissue = [region.polygon for region in regions if not _is_cut_out(region.name)]
    cut_out = [region.polygon for region in regions if _is_cut_out(region.name)]
    area = shapely.difference(shapely.union_all(tissue), shapely.union_all(cut_out))
    pieces = shapely.get_parts(area)
    pieces = pieces[(shapely.get_type_id(pieces) == 3) & (shapely.area(pieces) > 0)]
    return Tissue(shapely.MultiPolygon(list(pieces)))


def _is_cut_out(name: str) -> bool:
    # QuPath ends the names of such classes with an asterisk, and joins several by a colon.
    parts = (part.strip().rstrip("*").casefold().removesuffix("s") for part in name.split(":"))
    return any(part in _CUT_OUT for part in parts)


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value
