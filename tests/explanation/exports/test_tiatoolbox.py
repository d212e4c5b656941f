import numpy as np
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.explanation.exports import write_tiatoolbox_overlay

from .scored_patches import CLASSES, read_strictly, scored

shapely = pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")


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
    for name in ("attention_mean", "attention_std"):
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
