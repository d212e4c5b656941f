import numpy as np
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.evaluation import InstanceScores
from sgpmil.explanation.map_layers import map_layers
from sgpmil.viewer.scored_slide import ScoredSlide

shapely = pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")


def scored(coords, side=10, seed=0):
    rng = np.random.default_rng(seed)
    num = len(coords)
    attention = rng.dirichlet(np.ones(num))
    logit = rng.normal(size=(num, 2))
    scores = InstanceScores(
        attention,
        attention * 0.2,
        attention[:, None] * logit,
        attention[:, None] * np.abs(logit) * 0.2,
        coords=np.asarray(coords),
        patch_size=side,
    )
    return ScoredSlide(scores, ("normal", "tumour"))


def test_layers_are_those_of_explain(rng):
    slide = scored(rng.integers(0, 200, (30, 2)))
    for c in (0, 1):
        for layer in map_layers(slide.scores, c, slide.class_names[c]):
            found = slide.layer(layer.kind, c)
            assert (found.title, found.unit) == (layer.title, layer.unit)
            np.testing.assert_array_equal(found.values, layer.values)
    with pytest.raises(ExplanationError, match="Expected a layer among attention"):
        slide.layer("novelty", 0)


def test_patches_of_a_part_are_those_that_touch_it(rng):
    slide = scored(rng.integers(-50, 400, (500, 2)), side=17)
    for _ in range(30):
        left, top = rng.integers(-60, 400, 2).tolist()
        right, bottom = left + int(rng.integers(1, 90)), top + int(rng.integers(1, 90))
        x, y = slide.coords.T
        wanted = (x < right) & (x + 17 > left) & (y < bottom) & (y + 17 > top)
        assert sorted(slide.within(left, top, right, bottom)) == np.flatnonzero(wanted).tolist()


def test_the_patch_at_a_point_is_the_nearest_that_holds_it():
    slide = scored([(0, 0), (5, 0), (100, 100)])
    assert slide.patch_at(1.0, 1.0) == 0
    assert slide.patch_at(9.0, 5.0) == 1
    assert slide.patch_at(14.9, 9.9) == 1
    assert slide.patch_at(15.1, 5.0) is None
    assert slide.patch_at(109.5, 109.5) == 2


def test_values_have_the_interval_of_their_posterior():
    slide = scored([(0, 0), (10, 0), (20, 0)])
    values = {value.kind: value for value in slide.values(1, 1)}
    mean, sd = (slide.layer(kind, 1).values[1] for kind in ("evidence", "evidence_std"))
    assert values["evidence"].value == pytest.approx(mean)
    assert values["evidence"].low == pytest.approx(mean - 1.96 * sd)
    assert values["evidence"].high == pytest.approx(mean + 1.96 * sd)
    assert values["attention"].low >= 0


def test_a_grid_of_patches_has_the_area_of_its_patches():
    slide = scored([(x, y) for x in range(0, 50, 10) for y in range(0, 30, 10)])
    values = np.arange(15.0)
    found = slide.select(values, 11.5)
    assert not slide.overlap
    assert (found.num_patches, found.num_known, found.pixels) == (3, 15, 300.0)
    assert found.is_exact


def test_overlapping_patches_count_their_union_once(rng):
    coords = rng.integers(0, 300, (120, 2))
    slide = scored(coords, side=40)
    values = rng.random(120)
    boxes = [shapely.box(x, y, x + 40, y + 40) for x, y in coords[values >= 0.3]]
    found = slide.select(values, 0.3)
    assert slide.overlap
    assert found.num_patches == len(boxes)
    assert not found.is_exact
    assert found.pixels == pytest.approx(shapely.union_all(boxes).area, rel=0.02)


@pytest.mark.parametrize(("least", "count"), [(-1e300, 3), (1e300, 0)])
def test_a_threshold_may_be_any_number(least, count):
    slide = scored([(0, 0), (10, 0), (20, 0)])
    assert slide.select(np.arange(3, dtype=np.float32), least).num_patches == count


def test_scores_that_are_unknown_are_not_counted():
    slide = scored([(0, 0), (10, 0), (20, 0)])
    found = slide.select(np.array([np.nan, 1.0, 2.0]), -np.inf)
    assert (found.num_patches, found.num_known) == (2, 2)


def test_patches_without_coordinates_are_laid_out_in_rows():
    attention = np.full(7, 1 / 7)
    slide = ScoredSlide(InstanceScores(attention, attention), ("a", "b"))
    assert not slide.is_placed
    assert not slide.overlap
    assert len(np.unique(slide.coords, axis=0)) == 7
    assert slide.size == (3 * 256, 3 * 256)
