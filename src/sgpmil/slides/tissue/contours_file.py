"""Contours of tissue as GeoJSON that QuPath opens, edits and writes back."""

import json
import os
import uuid
from pathlib import Path

from sgpmil.bags.files import write_text
from sgpmil.slides.annotations.geojson import read_geojson
from sgpmil.slides.optional_part import require_package
from sgpmil.slides.tissue.area import Tissue

__all__ = ["read_contours", "write_contours"]

_CUT_OUT = ("ignore", "exclude", "exclusion", "background", "artefact", "artifact", "hole")
_COLOUR = (0, 160, 80)
_NAMESPACE = uuid.UUID("3c1d9a52-6d0e-5b7c-9a41-6a8d6f1f3f10")


def write_contours(path: str | os.PathLike[str], tissue: Tissue) -> None:
    """Write the contours of a slide's tissue, each piece one annotation with its holes.

    A ``FeatureCollection`` of polygons in level-0 pixels, of the class "tissue". The same tissue
    gives the same bytes: pieces, corners and ids follow from the area alone.

    Args:
        path: File to write, whole or not at all.
        tissue: The tissue.

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
    out wherever they lie; all others, of whatever class, are tissue.

    Args:
        path: File to read.

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
