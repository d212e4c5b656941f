import json

import numpy as np
import pytest
import shapely

from sgpmil.errors import ExplanationError
from sgpmil.explanation.prototypes import Nuclei, nuclei_in_patches, read_nuclei

HOVERNET = {
    "mag": 20,
    "nuc": {
        "1": {
            "bbox": [[8, 9], [14, 13]],
            "centroid": [10.5, 11.25],
            "contour": [[9, 8], [12, 13], [10, 13]],
            "type_prob": 0.9,
            "type": 1,
        },
        "7": {"centroid": [100.0, 7.0], "type": 5, "type_prob": 1.0},
        "9": {"centroid": [1.0, 2.0], "type": None, "type_prob": None},
    },
}
CELLVIT = {
    "wsi_metadata": {"magnification": 40},
    "type_map": {"1": "Neoplastic", "2": "Inflammatory"},
    "cells": [
        {"bbox": [[1, 1], [3, 3]], "centroid": [2.0, 3.0], "type": 2},
        {"bbox": [[1, 1], [3, 3]], "centroid": [5.0, 6.0], "type": 1},
        {"bbox": [[1, 1], [3, 3]], "centroid": [7.0, 8.0], "type": 2},
    ],
}


def feature(kind, coordinates, name="Neoplastic"):
    return {
        "type": "Feature",
        "geometry": {"type": kind, "coordinates": coordinates},
        "properties": {"objectType": "annotation", "classification": {"name": name}},
    }


def saved(tmp_path, content):
    path = tmp_path / "slide.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def named(nuclei):
    return [nuclei.type_names[kind] for kind in nuclei.types]


def test_hovernet_is_read(tmp_path):
    nuclei = read_nuclei(saved(tmp_path, HOVERNET))
    np.testing.assert_array_equal(nuclei.centroids, [[10.5, 11.25], [100, 7], [1, 2]])
    assert named(nuclei) == ["Neoplastic", "Epithelial", "Unlabelled"]
    assert nuclei.type_names == ("Unlabelled", "Neoplastic", "Epithelial")


def test_hovernet_at_another_magnification_is_scaled(tmp_path):
    path = saved(tmp_path, HOVERNET)
    nuclei = read_nuclei(path, magnification=40.0)
    np.testing.assert_array_equal(nuclei.centroids, [[21, 22.5], [200, 14], [2, 4]])
    same = read_nuclei(path, magnification=20.0)
    np.testing.assert_array_equal(same.centroids, [[10.5, 11.25], [100, 7], [1, 2]])


@pytest.mark.parametrize(
    "type_map",
    [{"1": "Neoplastic", "2": "Inflammatory"}, {"Neoplastic": 1, "Inflammatory": 2}, None],
)
def test_cellvit_is_read_with_its_types_either_way_round(tmp_path, type_map):
    nuclei = read_nuclei(saved(tmp_path, {**CELLVIT, "type_map": type_map}), magnification=20.0)
    np.testing.assert_array_equal(nuclei.centroids, [[2, 3], [5, 6], [7, 8]])
    assert named(nuclei) == ["Inflammatory", "Neoplastic", "Inflammatory"]


def test_other_types_keep_their_names(tmp_path):
    cells = [{"centroid": [1, 2], "type": 3}, {"centroid": [1, 2], "type": 9}]
    content = {"type_map": {"3": "plasma-cell"}, "cells": cells}
    assert named(read_nuclei(saved(tmp_path, content))) == ["plasma-cell", "Type 9"]


def test_cellvits_geojson_is_read(tmp_path):
    square = [[[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]]]
    content = [
        feature("MultiPoint", [[1, 2], [3, 4]]),
        feature("MultiPolygon", [square], "Dead"),
        feature("Point", [9.0, 8.0], "Connective"),
    ]
    for form in (content, {"type": "FeatureCollection", "features": content}):
        nuclei = read_nuclei(saved(tmp_path, form))
        np.testing.assert_allclose(nuclei.centroids, [[1, 2], [3, 4], [2, 2], [9, 8]])
        assert named(nuclei) == ["Neoplastic", "Neoplastic", "Dead", "Connective"]


def test_a_slide_without_nuclei_has_none(tmp_path):
    nuclei = read_nuclei(saved(tmp_path, {"mag": 40, "nuc": {}}))
    assert nuclei.centroids.shape == (0, 2)
    assert nuclei_in_patches(nuclei, np.array([[0, 0]]), 4).shape == (1, 0)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "",
        "[" * 100_000,
        {"cell": []},
        [1, 2],
        "null",
        {"nuc": {"1": {"type": 1}}},
        {"nuc": {"1": {"centroid": [1], "type": 1}}},
        {"nuc": {"1": {"centroid": [1, 2, 3], "type": 1}}},
        {"nuc": {"1": {"centroid": ["a", 2], "type": 1}}},
        {"nuc": {"1": {"centroid": [1, 2], "type": [1]}}},
        {"nuc": {"1": 5}},
        {"mag": 0, "nuc": {"1": {"centroid": [1, 2], "type": 1}}},
        {"mag": "high", "nuc": {"1": {"centroid": [1, 2], "type": 1}}},
        '{"cells": [{"centroid": [NaN, 1], "type": 1}]}',
        {"cells": [{"centroid": None, "type": 1}]},
        {"type_map": {"1": "a", "b": "c"}, "cells": []},
        [feature("LineString", [[0, 0], [1, 1]])],
        [feature("MultiPoint", [[]])],
        [feature("Polygon", [])],
        [feature("Point", [])],
        [feature("Polygon", [[[0, 0], [1, 1]]])],
        [{"geometry": None}],
    ],
)
def test_what_is_no_nuclei_file_is_told_in_one_sentence(tmp_path, content):
    path = saved(tmp_path, content)
    with pytest.raises(ExplanationError) as caught:
        read_nuclei(path, magnification=40.0)
    assert str(caught.value).startswith("Expected ")
    assert "slide.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ExplanationError, match=r"none\.json.*cannot be read"):
        read_nuclei(tmp_path / "none.json")


@pytest.mark.parametrize("step", [10, 4, 1])
def test_counts_are_those_of_shapely(step, monkeypatch):
    monkeypatch.setattr("sgpmil.explanation.prototypes.nuclei._AT_ONCE", 70)
    rng = np.random.default_rng(step)
    coords = step * rng.integers(-5, 12, (60, 2))
    points = np.round(rng.uniform(-60, 130, (500, 2)), 1)
    points[:60] = coords  # exactly on a corner: within
    points[60:120] = coords + 10  # exactly on the far corner: outside
    types = rng.integers(0, 3, 500)
    nuclei = Nuclei(points, types, ("a", "b", "c"))
    # The half-open square, as a closed one that ends between the tenths of the points.
    squares = shapely.box(*(coords - 0.01).T, *(coords + 9.95).T)
    patch, point = shapely.STRtree(shapely.points(points)).query(squares, predicate="covers")
    expected = np.zeros((60, 3), dtype=np.int64)
    np.add.at(expected, (patch, types[point]), 1)
    found = nuclei_in_patches(nuclei, coords, 10)
    np.testing.assert_array_equal(found, expected)
    assert expected.sum() > 100
