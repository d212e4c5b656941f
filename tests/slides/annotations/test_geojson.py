import json

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.geojson import read_geojson
from sgpmil.slides.annotations.regions import SkippedRegionWarning

from .drawings import feature, rectangle, write_geojson


@pytest.mark.parametrize("as_collection", [True, False])
def test_polygons_with_holes(tmp_path, as_collection):
    features = [
        feature([rectangle(0, 0, 10, 10), rectangle(1, 1, 3, 3)], "Tumor"),
        feature([rectangle(20, 0, 30, 10), rectangle(40, 0, 45, 1)], "Stroma", "MultiPolygon"),
    ]
    found = read_geojson(write_geojson(tmp_path / "a.geojson", features, as_collection))
    assert [region.name for region in found] == ["Tumor", "Stroma", "Stroma"]
    np.testing.assert_allclose([region.polygon.area for region in found], [96, 100, 5])


def test_one_feature(tmp_path):
    path = tmp_path / "a.geojson"
    path.write_text(json.dumps(feature([rectangle(0, 0, 2, 2)])))
    assert [region.polygon.area for region in read_geojson(path)] == [4]


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"classification": {"name": "Tumor"}}, "Tumor"),
        ({"classification": {"names": ["Tumor", "necrotic"]}}, "Tumor: necrotic"),
        ({"classification": "Tumor"}, "Tumor"),
        ({"classification": None}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_names(tmp_path, properties, name):
    one = feature([rectangle(0, 0, 2, 2)]) | {"properties": properties}
    (region,) = read_geojson(write_geojson(tmp_path / "a.geojson", [one]))
    assert region.name == name


def test_what_is_no_area_is_left_out_with_a_warning(tmp_path):
    point = feature([rectangle(0, 0, 2, 2)])
    point["geometry"] = {"type": "Point", "coordinates": [1, 2]}
    collection = feature([rectangle(0, 0, 2, 2)])
    collection["geometry"] = {
        "type": "GeometryCollection",
        "geometries": [feature([rectangle(0, 0, 3, 3)])["geometry"], point["geometry"]],
    }
    nowhere = feature([rectangle(0, 0, 2, 2)]) | {"geometry": None}
    short = feature([[(0, 0), (1, 1)]])
    path = write_geojson(tmp_path / "a.geojson", [point, collection, nowhere, short])
    with pytest.warns(SkippedRegionWarning, match="Left out 4 of 5 objects"):
        found = read_geojson(path)
    assert [region.polygon.area for region in found] == [9]


def test_empty(tmp_path):
    assert read_geojson(write_geojson(tmp_path / "a.geojson", [])) == ()


def test_damaged_files(tmp_path):
    path = write_geojson(tmp_path / "a.geojson", [feature([rectangle(0, 0, 2, 2)])])
    good = path.read_text()
    for text in (good[: len(good) // 2], "", "<xml/>"):
        path.write_text(text)
        with pytest.raises(AnnotationError, match=r"as GeoJSON .* cannot be read"):
            read_geojson(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_geojson(path)
    for content in ("7", '"text"', '{"a": 1}', "[1, 2]", '{"features": {"a": 1}}'):
        path.write_text(content)
        with pytest.raises(AnnotationError, match="Expected a FeatureCollection"):
            read_geojson(path)
    for corners in ('[["a", "b"], [1, 2], [3, 4]]', "[[1], [2], [3]]", "[1, 2, 3]", "7"):
        path.write_text(f'[{{"geometry": {{"type": "Polygon", "coordinates": [{corners}]}}}}]')
        with pytest.raises(AnnotationError, match="pairs of numbers"):
            read_geojson(path)
    path.write_text(
        '[{"geometry": {"type": "Polygon", "coordinates": [[[1, 2], [Infinity, 2], [3, 4]]]}}]'
    )
    with pytest.raises(AnnotationError, match="infinite"):
        read_geojson(path)
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_geojson(tmp_path / "absent.geojson")
