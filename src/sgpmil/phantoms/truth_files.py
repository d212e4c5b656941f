"""Known tissue and tumour of a scene, as GeoJSON that QuPath and this package read."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from sgpmil.bags.files import atomic_path
from sgpmil.phantoms.scene import Scene
from sgpmil.slides.optional_part import Geometry

_COLOURS = {
    "Tumor": (200, 0, 0),
    "Tissue": (0, 0, 0),
    "Stroma": (150, 200, 150),
    "Gland": (130, 90, 200),
    "Lymphocytes": (40, 60, 200),
    "Fat": (240, 210, 90),
    "Fold": (120, 60, 20),
    "Pen": (0, 160, 160),
}
"""Names as QuPath has them, and the colours it shows."""


def write_tumour(path: Path, scene: Scene) -> None:
    """Write the tumour, which a normal slide has none of: exactly what was drawn.

    Raises:
        OSError: The file cannot be written.
    """
    _write(path, scene, [("Tumor", scene.tumour)])


def write_tissue(path: Path, scene: Scene) -> None:
    """Write the tissue. Hollows of glands and fat belong to it, tears do not.

    Raises:
        OSError: The file cannot be written.
    """
    _write(path, scene, [("Tissue", scene.tissue)])


def write_regions(path: Path, scene: Scene) -> None:
    """Write the kinds of tissue, which do not overlap, and the folds and pen marks over them.

    Raises:
        OSError: The file cannot be written.
    """
    kinds = [("Tumor", scene.tumour)]
    kinds += [("Gland", gland.outline) for gland in scene.glands]
    kinds += [("Lymphocytes", scene.lymphocytes), ("Fat", scene.fat), ("Stroma", _stroma(scene))]
    kinds += [("Fold", scene.folds)]
    kinds += [("Pen", mark.outline) for mark in scene.pen]
    _write(path, scene, kinds)


def _stroma(scene: Scene) -> Geometry:
    """Return the tissue that is nothing else."""
    import shapely

    others = shapely.union_all([scene.tumour, scene.lymphocytes, scene.fat])
    parts = shapely.get_parts(shapely.difference(scene.tissue, others))
    # Glands lie within these parts and apart, so that they are holes as they are: no need to
    # compute a difference with thousands of them.
    tree = shapely.STRtree([gland.outline for gland in scene.glands])
    pierced = []
    for part in parts[shapely.area(parts) > 0]:
        glands = tree.geometries[tree.query(part, predicate="contains")]
        holes = [*part.interiors, *(gland.exterior for gland in glands)]
        pierced.append(shapely.Polygon(part.exterior, holes))
    return shapely.MultiPolygon(pierced)


def _write(path: Path, scene: Scene, kinds: Sequence[tuple[str, Geometry]]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"type":"FeatureCollection","features":[')
        separator = "\n"
        for name, area in kinds:
            for feature in _features(name, scene.in_pixels(area)):
                file.write(separator + feature)
                separator = ",\n"
        file.write("\n]}\n")


def _features(name: str, area: Geometry) -> Iterator[str]:
    """Yield a feature for each polygon of an area, as text."""
    import shapely

    kind = {"name": name, "color": _COLOURS[name]}
    known = json.dumps({"objectType": "annotation", "classification": kind})
    for part in shapely.get_parts(area):
        if part.geom_type == "Polygon" and not part.is_empty:
            drawn = shapely.to_geojson(part)
            yield f'{{"type":"Feature","geometry":{drawn},"properties":{known}}}'
