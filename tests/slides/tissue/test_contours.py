import json
import uuid

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely import box

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations import read_geojson
from sgpmil.slides.annotations.mask import AnnotationMask, mask_polygons
from sgpmil.slides.tissue import Tissue, read_contours, write_contours
from sgpmil.slides.tissue.contours import outline
from tests.slides.annotations.drawings import feature, rectangle, write_geojson


def area_of(mask, scale=1.0):
    rows, columns = mask.shape
    return outline(mask, np.arange(columns + 1) * scale, np.arange(rows + 1) * scale)


@settings(deadline=None, max_examples=300)
@given(
    st.integers(1, 14),
    st.integers(1, 14),
    st.floats(0, 1),
    st.sampled_from([1.0, 16.0, 7.5]),
    st.integers(0, 10**6),
)
def test_covers_exactly_the_pixels(rows, columns, share, scale, seed):
    # Dense random masks are full of holes, islands in holes, and pixels that touch at corners.
    mask = np.random.default_rng(seed).random((rows, columns)) < share
    found = area_of(mask, scale)
    assert found.is_valid
    assert found.area == mask.sum() * scale**2
    union_of_pixels = mask_polygons(AnnotationMask(mask, scale)).positive_area()
    assert found.symmetric_difference(union_of_pixels).area == 0


@pytest.mark.parametrize(
    "rows",
    [
        ["#"],
        ["#.", ".#"],
        [".#", "#."],
        ["#.#", ".#.", "#.#"],
        ["###", "#.#", "###"],
        ["####", "#.##", "##.#", "####"],
        ["#####", "#...#", "#.#.#", "#...#", "#####"],
        ["##...", "##...", "..##.", "..##.", "....#"],
    ],
)
def test_corners_holes_and_islands(rows):
    mask = np.array([[pixel == "#" for pixel in row] for row in rows])
    found = area_of(mask, 4.0)
    assert found.is_valid
    pixels = [
        shapely.box(4 * x, 4 * y, 4 * x + 4, 4 * y + 4) for y, x in np.argwhere(mask).tolist()
    ]
    assert found.equals(shapely.union_all(pixels))


def test_a_hole_is_a_hole_of_its_piece():
    mask = np.ones((5, 6), dtype=bool)
    mask[2, 2:4] = False
    (piece,) = area_of(mask, 2.0).geoms
    (hole,) = piece.interiors
    assert piece.exterior.bounds == (0, 0, 12, 10)
    assert hole.bounds == (4, 4, 8, 6)


def test_only_corners_are_kept():
    mask = np.zeros((40, 50), dtype=bool)
    mask[3:30, 5:45] = True
    (piece,) = area_of(mask).geoms
    assert len(piece.exterior.coords) == 5


def test_edges_need_not_be_equally_far_apart():
    found = outline(
        np.array([[True, False], [True, True]]),
        np.array([0.0, 3.0, 5.0]),
        np.array([0.0, 1.0, 4.0]),
    )
    assert found.equals(shapely.union(shapely.box(0, 0, 3, 4), shapely.box(3, 1, 5, 4)))


def test_nothing():
    assert area_of(np.zeros((3, 4), dtype=bool)).is_empty


WITH_HOLE = shapely.difference(box(0, 0, 40, 30), box(10, 10, 20, 20))
TWO = shapely.MultiPolygon([box(100, 0, 120, 10), WITH_HOLE])


def random_tissue(seed, scale=16.0):
    mask = np.random.default_rng(seed).random((30, 40)) < 0.6
    return Tissue(outline(mask, np.arange(41) * scale, np.arange(31) * scale))


def test_what_qupath_reads(tmp_path):
    path = tmp_path / "a slide.1.geojson"
    write_contours(path, Tissue(TWO))
    content = json.loads(path.read_text())
    assert content["type"] == "FeatureCollection"
    assert len(content["features"]) == 2
    for one, piece in zip(content["features"], (WITH_HOLE, box(100, 0, 120, 10)), strict=True):
        assert one["type"] == "Feature"
        assert str(uuid.UUID(one["id"])) == one["id"]
        assert one["properties"]["objectType"] == "annotation"
        assert one["properties"]["classification"]["name"] == "tissue"
        assert one["geometry"]["type"] == "Polygon"
        assert all(ring[0] == ring[-1] for ring in one["geometry"]["coordinates"])
        assert shapely.geometry.shape(one["geometry"]).equals(piece)
    assert len({one["id"] for one in content["features"]}) == 2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [16.0, 16.03])
def test_there_and_back(tmp_path, seed, scale):
    tissue = random_tissue(seed, scale)
    write_contours(tmp_path / "a.geojson", tissue)
    back = read_contours(tmp_path / "a.geojson")
    assert back.area.is_valid
    assert back.area.symmetric_difference(tissue.area).area == pytest.approx(0, abs=1e-6)
    write_contours(tmp_path / "b.geojson", back)
    assert (tmp_path / "a.geojson").read_bytes() == (tmp_path / "b.geojson").read_bytes()


def test_the_same_area_gives_the_same_bytes(tmp_path):
    write_contours(tmp_path / "a.geojson", Tissue(TWO))
    other_way_round = shapely.MultiPolygon([piece.reverse() for piece in reversed(TWO.geoms)])
    write_contours(tmp_path / "b.geojson", Tissue(other_way_round))
    assert (tmp_path / "a.geojson").read_bytes() == (tmp_path / "b.geojson").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.geojson", "b.geojson"]


def test_no_tissue(tmp_path):
    write_contours(tmp_path / "a.geojson", Tissue(shapely.MultiPolygon()))
    assert read_geojson(tmp_path / "a.geojson") == ()
    assert read_contours(tmp_path / "a.geojson").area.is_empty


def test_edited_in_qupath(tmp_path):
    write_contours(tmp_path / "a.geojson", Tissue(TWO))
    content = json.loads((tmp_path / "a.geojson").read_text())
    kept = content["features"][0]  # the other piece is removed
    added = [
        feature([rectangle(200, 0, 220, 10), rectangle(300, 0, 310, 10)], "Tumor", "MultiPolygon"),
        feature([rectangle(30, 20, 60, 40)], "Region*"),  # overlaps the kept piece
        feature([rectangle(205, 0, 210, 10)], "Ignore*"),
        feature([rectangle(0, 0, 5, 30)], "Artifacts"),
    ]
    nameless = feature([rectangle(400, 0, 410, 10)])
    nameless["properties"] = {"objectType": "annotation"}
    path = write_geojson(tmp_path / "b.geojson", [kept, *added, nameless])
    piece = 40 * 30 - 100 - 5 * 30
    overlapping = 30 * 20 - 10 * 10
    assert read_contours(path).area.area == piece + overlapping + 200 - 50 + 100 + 100


@pytest.mark.parametrize(
    ("name", "is_cut_out"),
    [
        ("Ignore*", True),
        ("ignore", True),
        ("EXCLUDE", True),
        ("Background", True),
        ("artefact", True),
        ("Artifact", True),
        ("Tissue: Ignore*", True),
        ("", False),
        ("tissue", False),
        ("Tumor", False),
        ("Stroma", False),
    ],
)
def test_classes_that_are_cut_out(tmp_path, name, is_cut_out):
    drawn = [feature([rectangle(0, 0, 10, 10)], "tissue"), feature([rectangle(5, 0, 20, 10)], name)]
    area = read_contours(write_geojson(tmp_path / "a.geojson", drawn)).area
    assert area.area == (50 if is_cut_out else 200)


def test_everything_cut_out(tmp_path):
    drawn = [feature([rectangle(0, 0, 9, 9)]), feature([rectangle(-1, -1, 20, 20)], "exclude")]
    assert read_contours(write_geojson(tmp_path / "a.geojson", drawn)).area.is_empty


def test_damaged(tmp_path):
    (tmp_path / "a.geojson").write_text('{"type": "FeatureColl')
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_contours(tmp_path / "a.geojson")


def test_an_old_file_stays_when_the_new_one_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.geojson"
    write_contours(path, Tissue(TWO))
    before = path.read_bytes()

    def no_space(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_contours(path, Tissue(WITH_HOLE))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.geojson"]
