import json
import math
import re

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")

from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.region_files import area_of_rings, read_asap_xml, read_geojson
from sgpmil.slides.annotations.regions import SkippedRegionWarning

from .drawings import circle, feature, rectangle, write_asap, write_geojson


def ring(points):
    return np.array(points, dtype=np.float64)


def test_figure_of_eight_keeps_both_lobes():
    found = area_of_rings(ring([(0, 0), (2, 2), (2, 0), (0, 2)]))
    assert found.area == pytest.approx(2)
    assert found.is_valid


def test_pentagram_keeps_its_middle():
    turns = 4 * np.pi * np.arange(5) / 5
    found = area_of_rings(np.stack([np.cos(turns), np.sin(turns)], axis=1))
    inner = math.sin(math.radians(18)) / math.sin(math.radians(54))
    assert found.area == pytest.approx(5 * inner * math.sin(math.radians(36)))
    assert found.is_valid


@pytest.mark.parametrize(
    "points",
    [
        [(0, 0)],
        [(0, 0), (1, 1)],
        [(0, 0), (1, 1), (0, 0)],
        [(0, 0), (1, 1), (2, 2)],
        [(3, 3), (3, 3), (3, 3), (3, 3)],
    ],
)
def test_what_has_no_area_is_none(points):
    assert area_of_rings(ring(points)) is None


def test_closed_or_not_and_either_way_round():
    corners = rectangle(1, 1, 4, 3)
    for points in (corners, [*corners, corners[0]], corners[::-1]):
        assert area_of_rings(ring(points)).area == pytest.approx(6)


def test_holes_are_cut_out():
    outer, hole, line = rectangle(0, 0, 10, 10), rectangle(2, 2, 5, 4), [(7, 7), (8, 8)]
    found = area_of_rings(ring(outer), [ring(hole), ring(line)])
    assert found.area == pytest.approx(94)
    assert area_of_rings(ring(hole), [ring(outer)]) is None


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 10), min_size=3, max_size=40), st.floats(-1e5, 1e5))
def test_area_of_star_shaped_outlines(radii, centre):
    angle = np.linspace(0, 2 * np.pi, len(radii), endpoint=False)
    points = centre + np.stack([radii * np.cos(angle), radii * np.sin(angle)], axis=1)
    x, y = (points - centre).T
    shoelace = abs((x * np.roll(y, -1) - y * np.roll(x, -1)).sum()) / 2
    assert area_of_rings(points).area == pytest.approx(shoelace, rel=1e-6)


def test_circle():
    expected = 400 / 2 * math.sin(2 * math.pi / 400) * 9
    assert area_of_rings(circle(5, 5, 3)).area == pytest.approx(expected)


def test_groups_and_areas(tmp_path):
    path = write_asap(
        tmp_path / "a.xml",
        [
            ("_0", rectangle(0, 0, 10.5, 20)),
            ("_2", rectangle(1, 1, 2, 2)),
            ("Tumor", rectangle(50, 0, 60, 1), "Rectangle"),
            ("None", [(0, 0), (2, 2), (2, 0), (0, 2)], "Spline"),
        ],
    )
    found = read_asap_xml(path)
    assert [region.name for region in found] == ["_0", "_2", "Tumor", "None"]
    np.testing.assert_allclose([region.polygon.area for region in found], [210, 1, 10, 2])
    assert found[0].polygon.bounds == (0, 0, 10.5, 20)


def test_points_are_taken_in_their_order(tmp_path):
    path = write_asap(tmp_path / "a.xml", [("Tumor", rectangle(0, 0, 4, 3))])
    lines = path.read_text().splitlines()
    corners = [k for k, line in enumerate(lines) if "<Coordinate " in line]
    # As written, the file's points would make a figure of eight.
    lines[corners[0]], lines[corners[1]] = lines[corners[1]], lines[corners[0]]
    path.write_text("\n".join(lines))
    assert read_asap_xml(path)[0].polygon.area == 12
    without_order = re.sub(r'Order="\d+" ', "", "\n".join(lines))
    path.write_text(without_order)
    assert read_asap_xml(path)[0].polygon.area == pytest.approx(6)


def test_xml_objects_without_an_area_are_left_out_with_a_warning(tmp_path):
    path = write_asap(
        tmp_path / "a.xml",
        [
            ("Tumor", [(1, 1)], "Dot"),
            ("Tumor", rectangle(0, 0, 9, 9), "PointSet"),
            ("Tumor", [(0, 0), (1, 1)]),
            ("Tumor", rectangle(0, 0, 2, 2)),
        ],
    )
    with pytest.warns(SkippedRegionWarning, match="Left out 3 of 4 objects"):
        found = read_asap_xml(path)
    assert [region.polygon.area for region in found] == [4]


def test_no_annotations(tmp_path):
    assert read_asap_xml(write_asap(tmp_path / "a.xml", [])) == ()


def test_damaged_xml(tmp_path):
    good = write_asap(tmp_path / "a.xml", [("Tumor", rectangle(0, 0, 9, 9))]).read_text()
    bad = tmp_path / "bad.xml"
    for text in (good[: len(good) // 2], "", "nonsense", good.replace("</Coordinates>", "")):
        bad.write_text(text)
        with pytest.raises(AnnotationError, match=r"ASAP writes .*bad\.xml.* cannot be read"):
            read_asap_xml(bad)
    for text in (
        good.replace('X="9.0"', 'X="nine"'),
        good.replace('X="9.0" ', ""),
        good.replace('X="9.0"', 'X="inf"'),
        good.replace('X="9.0"', 'X="nan"'),
    ):
        bad.write_text(text)
        with pytest.raises(AnnotationError, match="Expected numbers Order, X and Y"):
            read_asap_xml(bad)
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_asap_xml(tmp_path / "absent.xml")


def test_xml_of_another_program(tmp_path):
    path = tmp_path / "aperio.xml"
    path.write_text('<Annotations MicronsPerPixel="0.25"><Annotation Id="1"/></Annotations>')
    with pytest.raises(AnnotationError, match="but got 'Annotations'"):
        read_asap_xml(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_document_type_is_refused(tmp_path, encoding):
    bomb = (
        f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
        '<!ENTITY b "&a;&a;&a;&a;">]><ASAP_Annotations>&b;</ASAP_Annotations>'
    )
    path = tmp_path / "bomb.xml"
    path.write_bytes(bomb.encode(encoding))
    with pytest.raises(AnnotationError, match="document type"):
        read_asap_xml(path)


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


def test_geojson_objects_without_an_area_are_left_out_with_a_warning(tmp_path):
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


def test_damaged_geojson(tmp_path):
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
