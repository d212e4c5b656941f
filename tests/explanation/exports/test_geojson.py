import uuid

import numpy as np
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.exports import write_qupath_geojson, write_tiatoolbox_overlay
from sgpmil.slides.annotations import read_geojson

from .scored_patches import CLASSES, read_strictly, scored

shapely = pytest.importorskip("shapely", reason="pip install '.[slides]'")

# What QuPath's importer reads of an object (qupath.lib.io.QuPathTypeAdapters): the geometry, an
# optional UUID, and of the properties these, each only if it has this type.
FEATURE = {"type": str, "id": str, "geometry": dict, "properties": dict}
PROPERTIES = {
    "objectType": str,
    "isLocked": bool,
    "classification": dict,
    "measurements": dict,
}
OBJECT_TYPES = {"annotation", "detection", "tile", "cell", "tmaCore", "root"}


def check_as_qupath(collection):
    """Check every object against what QuPath expects; nothing may be there that it ignores."""
    assert collection.keys() == {"type", "features"}
    assert collection["type"] == "FeatureCollection"
    assert len({feature["id"] for feature in collection["features"]}) == len(collection["features"])
    for feature in collection["features"]:
        assert {name: type(value) for name, value in feature.items()} == FEATURE
        assert feature["type"] == "Feature"
        assert str(uuid.UUID(feature["id"])) == feature["id"]
        geometry, properties = feature["geometry"], feature["properties"]
        assert geometry.keys() == {"type", "coordinates"}
        assert geometry["type"] == "Polygon"
        (ring,) = geometry["coordinates"]
        assert ring[0] == ring[-1]
        assert all(len(point) == 2 and all(type(v) is int for v in point) for point in ring)
        assert {name: type(value) for name, value in properties.items()}.items() <= set(
            PROPERTIES.items()
        )
        assert properties["objectType"] in OBJECT_TYPES
        assert properties["isLocked"] is True
        if "classification" in properties:
            assert properties["classification"].keys() <= {"name", "color"}
            assert type(properties["classification"]["name"]) is str
            colour = properties["classification"].get("color", [0, 0, 0])
            assert len(colour) == 3
            assert all(type(v) is int and 0 <= v <= 255 for v in colour)
        measurements = properties["measurements"]
        assert measurements
        assert all(type(v) in (int, float) and np.isfinite(v) for v in measurements.values())


def test_tiles_are_as_qupath_expects_them(tmp_path):
    prototypes = np.arange(60) % 5 - 1
    colours = {0: "#88CCEE", 1: "#000000", 3: "#aa4499"}
    write_qupath_geojson(
        tmp_path / "a.geojson",
        "slide",
        scored(),
        CLASSES,
        prototypes=prototypes,
        similarity=np.linspace(-1, 1, 60),
        colours=colours,
    )
    collection = read_strictly(tmp_path / "a.geojson")
    check_as_qupath(collection)
    found = [feature["properties"].get("classification") for feature in collection["features"]]
    assert found[:5] == [
        None,
        {"name": "prototype 0", "color": [0x88, 0xCC, 0xEE]},
        {"name": "prototype 1", "color": [0, 0, 0]},
        {"name": "prototype 2"},
        {"name": "prototype 3", "color": [0xAA, 0x44, 0x99]},
    ]
    assert {feature["properties"]["objectType"] for feature in collection["features"]} == {"tile"}


def test_shapely_finds_each_patch_where_it_is(tmp_path):
    scores = scored()
    write_qupath_geojson(tmp_path / "a.geojson", "slide", scores, CLASSES)
    features = read_strictly(tmp_path / "a.geojson")["features"]
    assert len(features) == 60
    for feature, (x, y) in zip(features, scores.coords, strict=True):
        polygon = shapely.geometry.shape(feature["geometry"])
        assert polygon.is_valid
        assert polygon.exterior.is_ccw  # as RFC 7946 asks, which takes y to point up
        assert polygon.equals(shapely.box(x, y, x + 512, y + 512))


def test_measurements_are_the_scores_to_the_last_bit(tmp_path):
    scores = scored()
    similarity = np.random.default_rng(1).random(60)
    prototypes = np.arange(60) - 1
    write_qupath_geojson(
        tmp_path / "a.geojson",
        "slide",
        scores,
        CLASSES,
        prototypes=prototypes,
        similarity=similarity,
    )
    features = read_strictly(tmp_path / "a.geojson")["features"]
    expected = {
        "attention_mean": scores.attention_mean,
        "attention_std": scores.attention_std,
        "novelty": scores.novelty,
        "prototype_similarity": similarity,
        "prototype": np.where(prototypes < 0, np.nan, prototypes),
        "instance_label": np.where(scores.instance_labels < 0, np.nan, scores.instance_labels),
    }
    for index, name in enumerate(CLASSES):
        expected[f"evidence_{name}"] = scores.evidence_mean[:, index]
        expected[f"evidence_{name}_std"] = scores.evidence_std[:, index]
        with np.errstate(invalid="ignore"):
            expected[f"margin_{name}"] = scores.score("evidence", index)
        expected[f"margin_{name}_std"] = scores.score_std("evidence", index)
        expected[f"single_{name}"] = scores.single_mean[:, index]
        expected[f"single_{name}_std"] = scores.single_std[:, index]
        expected[f"single_probability_{name}"] = scores.single_prob[:, index]
    assert set().union(*(f["properties"]["measurements"] for f in features)) == set(expected)
    for name, values in expected.items():
        written = [feature["properties"]["measurements"].get(name) for feature in features]
        for found, value in zip(written, values, strict=True):
            if np.isfinite(value):
                assert values.dtype.type(found) == value
            else:
                assert found is None


def test_tiles_keep_their_names_from_one_export_to_the_next(tmp_path):
    def ids(path, slide, scores):
        write_qupath_geojson(path, slide, scores, CLASSES)
        return [feature["id"] for feature in read_strictly(path)["features"]]

    first = ids(tmp_path / "a.geojson", "slide 1", scored())
    assert first == ids(tmp_path / "b.geojson", "slide 1", scored(seed=5))
    assert not set(first) & set(ids(tmp_path / "c.geojson", "slide 2", scored()))
    namespace = uuid.uuid5(uuid.NAMESPACE_URL, "sgpmil:slide 1")
    assert first == [str(uuid.uuid5(namespace, str(index))) for index in range(60)]


def test_the_offset_moves_the_origin(tmp_path):
    scores = scored()
    write_qupath_geojson(tmp_path / "a.geojson", "slide", scores, CLASSES, offset=(1000, -7))
    features = read_strictly(tmp_path / "a.geojson")["features"]
    corners = [feature["geometry"]["coordinates"][0][0] for feature in features]
    assert np.array_equal(corners, scores.coords - [1000, -7])


def test_writing_in_parts_gives_the_same_file(tmp_path, monkeypatch):
    prototypes = np.arange(60) % 4
    write_qupath_geojson(tmp_path / "a.geojson", "s", scored(), CLASSES, prototypes=prototypes)
    monkeypatch.setattr("sgpmil.explanation.exports.geojson._AT_ONCE", 7)
    write_qupath_geojson(tmp_path / "b.geojson", "s", scored(), CLASSES, prototypes=prototypes)
    assert (tmp_path / "a.geojson").read_bytes() == (tmp_path / "b.geojson").read_bytes()


def test_a_model_without_evidence_and_a_guessed_side(tmp_path):
    coords = np.array([[0, 0], [96, 0], [0, 96]])
    scores = InstanceScores(np.ones(3), np.zeros(3), coords=coords)
    write_qupath_geojson(tmp_path / "a.geojson", "slide", scores, ("a", "b"))
    collection = read_strictly(tmp_path / "a.geojson")
    check_as_qupath(collection)
    assert collection["features"][1]["geometry"]["coordinates"][0][2] == [192, 96]
    assert collection["features"][0]["properties"]["measurements"] == {
        "attention_mean": 1,
        "attention_std": 0,
    }


def test_our_own_reader_opens_it(tmp_path):
    scores, prototypes = scored(), np.arange(60) % 3
    write_qupath_geojson(tmp_path / "a.geojson", "slide", scores, CLASSES, prototypes=prototypes)
    regions = read_geojson(tmp_path / "a.geojson")
    assert [region.name for region in regions] == [f"prototype {p}" for p in prototypes]
    assert [region.polygon.bounds[:2] for region in regions] == [
        tuple(corner) for corner in scores.coords.tolist()
    ]


def test_a_failure_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "a.geojson"
    path.write_text("old")
    monkeypatch.setattr("sgpmil.explanation.exports.geojson._AT_ONCE", 50)
    calls = []

    def failing(names, columns):
        calls.append(names)
        if len(calls) == 2:
            raise RuntimeError("disk full")
        return json_fields(names, columns)

    from sgpmil.explanation.exports.geojson import json_fields

    monkeypatch.setattr("sgpmil.explanation.exports.geojson.json_fields", failing)
    with pytest.raises(RuntimeError, match="disk full"):
        write_qupath_geojson(path, "slide", scored(), CLASSES)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.geojson"]


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path):
    path, scores = tmp_path / "a.geojson", scored()
    no_places = InstanceScores(np.ones(2), np.zeros(2))
    with pytest.raises(ExplanationError, match="coordinates of their patches, but got none"):
        write_qupath_geojson(path, "slide", no_places, CLASSES)
    with pytest.raises(ExplanationError, match=r"names of 2 classes, .* but got 3"):
        write_qupath_geojson(path, "slide", scores, ("a", "b", "c"))
    with pytest.raises(ExplanationError, match="'evidence_a_std' would appear 2 times"):
        write_qupath_geojson(path, "slide", scores, ("a", "a_std"))
    with pytest.raises(ExplanationError, match=r"'prototype' for each of the 60 .* but got 59"):
        write_qupath_geojson(path, "slide", scores, CLASSES, prototypes=np.zeros(59, int))
    with pytest.raises(ExplanationError, match="'#RRGGBB', but got 'red'"):
        write_qupath_geojson(
            path, "s", scores, CLASSES, prototypes=np.zeros(60, int), colours={0: "red"}
        )
    assert not list(tmp_path.iterdir())


shapely = pytest.importorskip("shapely", reason="pip install '.[slides]'")


def annotations(path):
    """Read as TIAToolbox's AnnotationStore does: geometry and properties of each feature."""
    return [
        (shapely.geometry.shape(feature["geometry"]), feature["properties"])
        for feature in read_strictly(path)["features"]
    ]


def test_patches_lie_where_they_are_with_flat_properties(tmp_path):
    scores = scored()
    prototypes = np.arange(60) - 1
    write_tiatoolbox_overlay(tmp_path / "a.geojson", "a", scores, CLASSES, prototypes=prototypes)
    found = annotations(tmp_path / "a.geojson")
    assert len(found) == 60
    for index, (polygon, properties) in enumerate(found):
        x, y = scores.coords[index]
        assert polygon.equals(shapely.box(x, y, x + 512, y + 512))
        assert all(type(value) in (int, float, str) for value in properties.values())
        assert properties["type"] == (f"prototype {index - 1}" if index else "patch")
        for name, value in properties.items():
            if name.endswith("_scaled"):
                assert 0 <= value <= 1
    assert np.float32(found[7][1]["attention_mean"]) == scores.attention_mean[7]


def test_attention_is_scaled_from_lowest_to_highest(tmp_path):
    scores = scored()
    write_tiatoolbox_overlay(tmp_path / "a.geojson", "a", scores, CLASSES)
    found = annotations(tmp_path / "a.geojson")
    assert {properties["type"] for _, properties in found} == {"patch"}
    for name in ("attention_mean", "attention_std", "novelty"):
        values = getattr(scores, name).astype(float)
        low, high = np.nanmin(values), np.nanmax(values)
        for value, (_, properties) in zip(values, found, strict=True):
            if np.isnan(value):
                assert f"{name}_scaled" not in properties
            else:
                expected = (value - low) / (high - low)
                assert properties[f"{name}_scaled"] == pytest.approx(expected, abs=1e-12)


def test_no_evidence_is_in_the_middle(tmp_path):
    margin = np.array([0.0, 4.0, -2.0, 1.0])
    scores = InstanceScores(
        np.full(4, 0.25),
        np.zeros(4),
        np.stack([np.zeros(4), margin], axis=1),
        np.zeros((4, 2)),
        coords=np.arange(8).reshape(4, 2),
        patch_size=1,
    )
    write_tiatoolbox_overlay(tmp_path / "a.geojson", "a", scores, ("n", "t"))
    found = [properties for _, properties in annotations(tmp_path / "a.geojson")]
    assert [p["margin_t_scaled"] for p in found] == [0.5, 1, 0.25, 0.625]
    assert [p["margin_n_scaled"] for p in found] == [0.5, 0, 0.75, 0.375]
    assert [p["attention_mean_scaled"] for p in found] == [0.5] * 4


def test_a_model_that_finds_nothing_is_all_middle(tmp_path):
    zeros = np.zeros((3, 2))
    scores = InstanceScores(
        np.ones(3), np.zeros(3), zeros, zeros, coords=np.eye(3, 2, dtype=int), patch_size=1
    )
    write_tiatoolbox_overlay(tmp_path / "a.geojson", "a", scores, ("n", "t"))
    found = [properties for _, properties in annotations(tmp_path / "a.geojson")]
    assert [p["margin_t_scaled"] for p in found] == [0.5] * 3


def test_scores_without_places_are_refused(tmp_path):
    with pytest.raises(ExplanationError, match="coordinates of their patches, but got none"):
        write_tiatoolbox_overlay(
            tmp_path / "a.geojson", "a", InstanceScores(np.ones(2), np.zeros(2)), CLASSES
        )
    assert not list(tmp_path.iterdir())
