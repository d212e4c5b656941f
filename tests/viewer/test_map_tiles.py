from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from sgpmil.evaluation import InstanceScores
from sgpmil.explanation.colour_scales import COLOUR_SCALES
from sgpmil.explanation.maps import NO_PATCH, label_map, score_map
from sgpmil.viewer.map_tiles import (
    canvas_tile,
    coloured_png,
    label_png,
    label_tile,
    map_pyramid,
    score_tile,
)
from sgpmil.viewer.scored_slide import ScoredSlide

SIZE = (1500, 1100)


def slide(seed=0, num=80, side=96):
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(-20, SIZE[0], num), rng.integers(-20, SIZE[1], num)], axis=1)
    values = rng.normal(size=num)
    scores = InstanceScores(np.abs(values), np.zeros(num), coords=coords, patch_size=side)
    return ScoredSlide(scores, ("a", "b")), values


def whole(draw, pyramid, level):
    """Put the tiles of a level together."""
    width, height = pyramid.level_size(level)
    rows = []
    for row in range(-(-height // 256)):
        tiles = [draw(level, column, row) for column in range(-(-width // 256))]
        rows.append(np.concatenate(tiles, axis=1))
    return np.concatenate(rows, axis=0)


@pytest.mark.parametrize("level", [3, 7, 9, 10, 11])
def test_tiles_are_the_map_of_the_whole_slide_cut_into_pieces(level):
    scored, values = slide()
    values[5] = np.nan
    pyramid = map_pyramid(SIZE)
    wanted = score_map(
        scored.coords,
        scored.side,
        values,
        slide_size=SIZE,
        downsample=float(pyramid.downsample(level)),
    ).values
    found = whole(lambda *place: score_tile(scored, values, pyramid, *place), pyramid, level)
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_patch_lies_on_its_own_pixels():
    scores = InstanceScores(np.ones(1), np.zeros(1), coords=np.array([[300, 200]]), patch_size=100)
    scored = ScoredSlide(scores, ("a", "b"))
    pyramid = map_pyramid((1024, 512))
    found = whole(lambda *p: score_tile(scored, np.ones(1), pyramid, *p), pyramid, 10)
    wanted = np.full((512, 1024), np.nan)
    wanted[200:300, 300:400] = 1
    np.testing.assert_array_equal(found, wanted)


def test_there_is_no_tile_beyond_the_slide():
    scored, values = slide()
    pyramid = map_pyramid(SIZE)
    assert score_tile(scored, values, pyramid, 11, 6, 0) is None
    assert score_tile(scored, values, pyramid, 12, 0, 0) is None
    assert label_tile(scored, np.zeros(80, int), values, pyramid, 11, 0, 5) is None


def test_labels_are_those_of_the_label_map_on_a_grid():
    rng = np.random.default_rng(1)
    coords = np.stack(np.meshgrid(np.arange(9), np.arange(7)), -1).reshape(-1, 2) * 64
    labels, priority = rng.integers(0, 5, len(coords)), rng.random(len(coords))
    scores = InstanceScores(priority, priority, coords=coords, patch_size=64)
    scored = ScoredSlide(scores, ("a", "b"))
    pyramid = map_pyramid((9 * 64, 7 * 64))
    wanted = label_map(coords, 64, labels, priority).values
    cell = 576 // wanted.shape[1]
    found = whole(lambda *p: label_tile(scored, labels, priority, pyramid, *p), pyramid, 10)
    np.testing.assert_array_equal(found[cell // 2 :: cell, cell // 2 :: cell], wanted)


def test_of_patches_that_overlap_the_largest_priority_is_on_top():
    coords = np.array([[0, 0], [32, 0]])
    scores = InstanceScores(np.ones(2), np.zeros(2), coords=coords, patch_size=64)
    scored = ScoredSlide(scores, ("a", "b"))
    pyramid = map_pyramid((128, 64))
    for priority, middle in (([0.1, 0.9], 7), ([0.9, 0.1], 3)):
        found = label_tile(scored, np.array([3, 7]), np.array(priority), pyramid, 7, 0, 0)
        assert (found[:, :32] == 3).all()
        assert (found[:, 32:64] == middle).all()
        assert (found[:, 64:96] == 7).all()
        assert (found[:, 96:] == NO_PATCH).all()


def test_patches_smaller_than_a_pixel_are_still_seen():
    scores = InstanceScores(np.ones(1), np.zeros(1), coords=np.array([[130, 10]]), patch_size=8)
    scored = ScoredSlide(scores, ("a", "b"))
    found = label_tile(scored, np.array([4]), np.ones(1), map_pyramid((1024, 1024)), 4, 0, 0)
    assert (found == 4).sum() == 1


def test_colours_are_those_of_the_scale_and_no_patch_is_transparent():
    scale = COLOUR_SCALES["evidence"]
    values = np.array([[-2.0, 0.0, 2.0], [9.0, np.nan, -9.0]])
    image = Image.open(BytesIO(coloured_png(values, scale, (-2.0, 2.0)))).convert("RGBA")
    pixels = np.asarray(image)
    table = scale.table(255)
    assert pixels[0, 0].tolist() == [*table[0], 255]
    assert pixels[0, 1].tolist() == [*table[127], 255]
    assert pixels[0, 2].tolist() == pixels[1, 0].tolist() == [*table[254], 255]
    assert pixels[1, 1, 3] == 0
    assert pixels[1, 2].tolist() == [*table[0], 255]


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_slide_shows_through_scores_that_say_little(is_signed):
    low = -2.0 if is_signed else 0.0
    values = np.array([[0.0, 0.1, 2.0, np.nan]])
    kind = "evidence" if is_signed else "attention"
    content = coloured_png(values, COLOUR_SCALES[kind], (low, 2.0), is_signed=is_signed, fades=True)
    pixels = np.asarray(Image.open(BytesIO(content)).convert("RGBA"))
    opacity = pixels[0, :, 3].tolist()
    assert 0 < opacity[0] < 64
    assert opacity[0] < opacity[1] < opacity[2] == 255
    assert opacity[3] == 0
    negative = coloured_png(-values, COLOUR_SCALES["evidence"], (-2.0, 2.0), is_signed=True)
    assert np.asarray(Image.open(BytesIO(negative)).convert("RGBA"))[0, 0, 3] == 255


def test_prototypes_have_their_colours():
    colours = {0: "#88CCEE", 5: "#E69F00", 2: "#88CCEE"}
    content = label_png(np.array([[0, 5], [2, NO_PATCH]]), colours)
    pixels = np.asarray(Image.open(BytesIO(content)).convert("RGBA"))
    assert pixels[0, 0].tolist() == pixels[1, 0].tolist() == [0x88, 0xCC, 0xEE, 255]
    assert pixels[0, 1].tolist() == [0xE6, 0x9F, 0x00, 255]
    assert pixels[1, 1, 3] == 0


def test_a_canvas_shows_where_the_patches_are():
    scores = InstanceScores(np.ones(1), np.zeros(1), coords=np.array([[64, 32]]), patch_size=64)
    scored = ScoredSlide(scores, ("a", "b"))
    found = canvas_tile(scored, map_pyramid((256, 128)), 8, 0, 0)
    background = found[0, 0].tolist()
    inside = (found != background).any(axis=2)
    wanted = np.zeros((128, 256), bool)
    wanted[32:96, 64:128] = True
    np.testing.assert_array_equal(inside, wanted)
