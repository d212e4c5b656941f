import json

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")

import shapely

from sgpmil.phantoms.stain import Paint
from sgpmil.phantoms.truth_files import write_regions, write_tissue, write_tumour
from sgpmil.slides.annotations import RegionRule, read_annotations, read_geojson
from sgpmil.slides.annotations.mask import rasterise

from .scenes import SMALL, tissue_kinds


def test_tumour_is_exactly_what_was_drawn(tmp_path, scene):
    path = tmp_path / "a.geojson"
    write_tumour(path, scene)
    annotations = read_annotations(path)
    assert {region.name for region in annotations.positive} == {"Tumor"}
    assert annotations.positive_area().equals(scene.in_pixels(scene.tumour))
    width, height = SMALL.size
    drawn = tissue_kinds(scene, 0, 0, width, height) == Paint.TUMOUR
    np.testing.assert_array_equal(rasterise(annotations, 1, (height, width)), drawn)


def test_normal_slides_have_an_empty_collection(tmp_path, normal_scene):
    path = tmp_path / "a.geojson"
    write_tumour(path, normal_scene)
    assert json.loads(path.read_text()) == {"type": "FeatureCollection", "features": []}
    assert not read_annotations(path).is_positive


def test_tissue(tmp_path, scene):
    path = tmp_path / "a.geojson"
    write_tissue(path, scene)
    regions = read_geojson(path)
    assert {region.name for region in regions} == {"Tissue"}
    area = shapely.union_all([region.polygon for region in regions])
    assert area.equals(scene.in_pixels(scene.tissue))


def test_regions_part_the_tissue(tmp_path, scene):
    path = tmp_path / "a.geojson"
    write_regions(path, scene)
    regions = read_geojson(path)
    names = {"Tumor", "Gland", "Lymphocytes", "Fat", "Stroma", "Fold", "Pen"}
    assert {region.name for region in regions} == names
    area = {
        name: sum(region.polygon.area for region in regions if region.name == name)
        for name in names
    }
    whole = scene.in_pixels(scene.tissue).area
    assert sum(area[name] for name in names - {"Fold", "Pen"}) == pytest.approx(whole, rel=1e-4)
    tumour = read_annotations(path, RegionRule(positive=("Tumor",)))
    assert tumour.positive_area().equals(scene.in_pixels(scene.tumour))


def test_form_is_that_of_qupath(tmp_path, scene):
    path = tmp_path / "a.geojson"
    write_tumour(path, scene)
    feature = json.loads(path.read_text())["features"][0]
    assert feature["type"] == "Feature"
    assert feature["geometry"]["type"] == "Polygon"
    assert feature["properties"]["objectType"] == "annotation"
    assert feature["properties"]["classification"] == {"name": "Tumor", "color": [200, 0, 0]}
    ring = feature["geometry"]["coordinates"][0]
    assert ring[0] == ring[-1]
