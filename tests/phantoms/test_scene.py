from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")

import shapely

from sgpmil.errors import SettingsError
from sgpmil.phantoms import PhantomSettings, make_scene
from sgpmil.phantoms.anatomy import draw_folds
from sgpmil.phantoms.scene import draw_pen

from .scenes import SMALL


def test_extent_in_microns():
    assert PhantomSettings(size=(4000, 2000), mpp=0.25).extent == (1000, 500)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"size": (100, 4000)}, r"512 to 400,000 pixels a side, but got 100×4000"),
        ({"size": (500_000, 4000)}, "but got 500000×4000"),
        ({"mpp": 0.0}, "0.1 to 2 microns a pixel, but got 0"),
        ({"mpp": 8.0}, "but got 8"),
        ({"mpp": float("nan")}, "but got nan"),
        ({"size": (600, 4000), "mpp": 0.5}, r"at least 400 microns a side, but got 300×2000"),
        ({"tumour_share": -0.1}, "from 0 to 0.9, but got -0.1"),
        ({"tumour_share": 1.0}, "but got 1"),
        ({"pen_share": 1.5}, "with a pen from 0 to 1, but got 1.5"),
        ({"fold_share": -1.0}, "with a fold from 0 to 1, but got -1"),
        ({"quality": 0}, "quality from 1 to 100, but got 0"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(wrong, sentence):
    with pytest.raises(SettingsError, match=sentence):
        PhantomSettings(**wrong)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.01, 0.05, 0.4])
def test_tumour_has_the_share_that_was_asked_for(seed, share):
    settings = PhantomSettings(size=(3000, 2200), mpp=1.0, tumour_share=share)
    scene = make_scene(seed, settings)
    measured = shapely.area(scene.tumour) / shapely.area(scene.tissue)
    assert measured == pytest.approx(share, rel=0.02)
    assert scene.tumour_share == measured
    assert scene.is_positive
    # In pixels too, where corners are rounded.
    rounded = scene.in_pixels(scene.tumour).area / scene.in_pixels(scene.tissue).area
    assert rounded == pytest.approx(share, rel=0.02)


def test_large_shares_are_reached():
    scene = make_scene(1, replace(SMALL, tumour_share=0.9))
    assert scene.tumour_share == pytest.approx(0.9, rel=0.02)


def test_normal_slides_have_the_same_tissue_and_no_tumour(scene, normal_scene):
    assert normal_scene.tumour.is_empty
    assert not normal_scene.is_positive
    assert normal_scene.tumour_share == 0
    assert normal_scene.tissue.equals(scene.tissue)
    assert normal_scene.stain == scene.stain
    assert len(normal_scene.glands) >= len(scene.glands)


def test_same_seed_same_scene(scene):
    again, other = make_scene(3, SMALL), make_scene(4, SMALL)
    for name in ("tissue", "tumour", "lymphocytes", "fat", "folds"):
        assert getattr(again, name).equals_exact(getattr(scene, name), 0)
        assert not getattr(other, name).equals_exact(getattr(scene, name), 0)
    assert [g.outline.wkb for g in again.glands] == [g.outline.wkb for g in scene.glands]


def test_a_finer_resolution_shows_the_same_scene(scene):
    fine = make_scene(3, replace(SMALL, size=(4000, 3000), mpp=0.25))
    assert fine.tissue.equals_exact(scene.tissue, 0)
    assert fine.tumour.equals_exact(scene.tumour, 0)
    assert fine.in_pixels(fine.tissue).area == pytest.approx(
        4 * scene.in_pixels(scene.tissue).area, rel=1e-4
    )


@pytest.mark.parametrize("seed", range(5))
def test_structures_lie_in_the_tissue_and_apart(seed):
    scene = make_scene(seed, SMALL)
    glands = shapely.union_all([gland.outline for gland in scene.glands])
    vessels = shapely.union_all([vessel.outline for vessel in scene.vessels])
    parts = [scene.tumour, scene.fat, scene.lymphocytes, glands, vessels]
    for number, part in enumerate(parts):
        assert part.is_valid
        assert shapely.difference(part, scene.tissue).area < 1e-3
        for other in parts[:number]:
            assert shapely.intersection(part, other).area < 1e-3
    assert glands.area == pytest.approx(sum(gland.outline.area for gland in scene.glands))
    hollow = [gland for gland in scene.glands if not gland.hollow.is_empty]
    assert all(gland.outline.contains(gland.hollow) for gland in hollow)
    cells = shapely.union_all(scene.adipocytes)
    assert cells.area == pytest.approx(sum(cell.area for cell in scene.adipocytes))
    assert shapely.difference(cells, scene.fat).area < 1e-3
    assert shapely.difference(scene.folds, scene.tissue).area < 1e-3


def test_tissue_stays_on_the_slide_with_glass_around_it():
    shares = []
    for seed in range(12):
        scene = make_scene(seed, SMALL)
        width, height = SMALL.extent
        left, top, right, bottom = scene.tissue.bounds
        assert left > 0.02 * width
        assert right < 0.98 * width
        assert top > 0.02 * height
        assert bottom < 0.98 * height
        shares.append(scene.tissue.area / (width * height))
    assert min(shares) > 0.15
    assert max(shares) < 0.8
    assert np.std(shares) > 0.02


def test_pens_and_folds_are_as_frequent_as_asked_for(scene):
    def pens(share):
        rngs = [np.random.default_rng(seed) for seed in range(60)]
        return [draw_pen(rng, scene.tissue, SMALL.extent, share) for rng in rngs]

    def folds(share):
        rngs = [np.random.default_rng(seed) for seed in range(60)]
        return [not draw_folds(rng, scene.tissue, share).is_empty for rng in rngs]

    assert not any(pens(0.0))
    assert not any(folds(0.0))
    # 30 expected; the 99.9 % interval of the binomial distribution.
    assert 17 <= sum(map(bool, pens(0.5))) <= 43
    assert 17 <= sum(folds(0.5)) <= 43
    assert all(pens(1.0))
    assert {marks[0].ink for marks in pens(1.0)} == {"blue", "green", "black", "red"}
    slide = shapely.box(0, 0, *SMALL.extent)
    assert all(slide.covers(mark.outline) for marks in pens(1.0) for mark in marks)
