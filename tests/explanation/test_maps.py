import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import minmax_scale

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.maps import (
    NO_PATCH,
    ScoreMap,
    label_map,
    patch_side,
    placed_coords,
    scaled,
    score_map,
)


def placed(coords, side=None):
    num = len(coords)
    return InstanceScores(np.ones(num), np.zeros(num), coords=np.array(coords), patch_size=side)


def grid(columns, rows, step, start=(0, 0)):
    x, y = np.meshgrid(np.arange(columns) * step + start[0], np.arange(rows) * step + start[1])
    return np.stack([x.ravel(), y.ravel()], axis=1)


def test_the_stored_side_is_taken():
    assert patch_side(placed(grid(3, 3, 256), side=512)) == 512


def test_the_side_is_inferred_from_a_grid_with_holes(rng):
    coords = grid(20, 20, 512, (37, 11))
    assert patch_side(placed(rng.permutation(coords)[:150])) == 512


def test_pieces_of_tissue_may_have_grids_of_their_own():
    # The smallest step between any two x is 1 here, which says nothing of the side.
    coords = np.concatenate([grid(6, 5, 224), grid(4, 4, 224, (4001, 130)), [[4002, 9000]]])
    assert patch_side(placed(coords)) == 224


def test_a_single_row_is_enough():
    assert patch_side(placed(grid(4, 1, 96))) == 96
    assert patch_side(placed(grid(1, 4, 96))) == 96


def test_without_rows_it_is_the_distance_to_the_nearest():
    assert patch_side(placed([[0, 0], [30, 1], [61, 2], [90, 3]])) == 30


def test_the_same_place_twice_says_nothing():
    assert patch_side(placed([[0, 0], [0, 0], [64, 0], [64, 0], [128, 0]])) == 64
    with pytest.raises(ExplanationError, match="cannot be inferred from a single place"):
        patch_side(placed([[5, 5], [5, 5]]))


def test_scores_without_places_are_refused():
    with pytest.raises(ExplanationError, match="coordinates of their patches, but got none"):
        placed_coords(InstanceScores(np.ones(2), np.zeros(2)))
    with pytest.raises(ExplanationError, match="at least one patch, but got none"):
        placed_coords(InstanceScores(np.ones(0), np.zeros(0), coords=np.zeros((0, 2), int)))
    with pytest.raises(ExplanationError, match="a side of 0"):
        patch_side(placed([[0, 0]], side=0))


@pytest.fixture
def values(rng):
    # Ties, both signs, and some that lie far from the rest.
    return np.concatenate([rng.normal(size=50), np.repeat(0.3, 5), [40.0, -7.0]])


def test_absolute_leaves_scores_alone(values):
    assert np.array_equal(scaled(values, "absolute"), values)


def test_rank_is_that_of_pandas(values):
    expected = (pd.Series(values).rank(method="average").to_numpy() - 1) / (len(values) - 1)
    np.testing.assert_allclose(scaled(values, "rank"), expected, rtol=1e-12)
    assert scaled(values, "rank").min() == 0
    assert scaled(values, "rank").max() == 1


def test_minmax_is_that_of_scikit_learn(values):
    np.testing.assert_allclose(scaled(values, "minmax"), minmax_scale(values), atol=1e-12)


@pytest.mark.parametrize("scale", ["rank", "minmax"])
def test_equal_scores_are_in_the_middle(scale):
    assert scaled(np.full(7, 0.2), scale).tolist() == [0.5] * 7
    assert scaled(np.array([3.0]), scale).tolist() == [0.5]
    assert scaled(np.array([np.nan, 3.0]), scale)[1] == 0.5


@pytest.mark.parametrize("scale", ["rank", "minmax"])
def test_unknown_scores_stay_so_and_change_nothing_else(values, scale):
    with_unknown = np.insert(values, [0, 20, len(values)], np.nan)
    found = scaled(with_unknown, scale)
    assert np.isnan(found[[0, 21, -1]]).all()
    assert np.array_equal(found[~np.isnan(with_unknown)], scaled(values, scale))
    assert np.isnan(scaled(np.array([np.nan, np.nan]), scale)).all()


def test_minmax_of_the_largest_numbers_is_finite():
    largest = np.finfo(np.float64).max
    assert scaled(np.array([-largest, 0.0, largest]), "minmax").tolist() == [0, 0.5, 1]


def test_single_precision_is_ranked_as_it_is():
    close = np.array([1.0, np.nextafter(np.float32(1), np.float32(2))], dtype=np.float32)
    assert scaled(close, "rank").tolist() == [0, 1]


def test_what_is_no_scale_or_no_score_is_refused():
    # Without the types' own check, which would speak first.
    function = getattr(scaled, "__wrapped__", scaled)
    with pytest.raises(ExplanationError, match="'absolute', 'rank' or 'minmax', but got 'log'"):
        function(np.ones(2), "log")
    with pytest.raises(ExplanationError, match="infinite"):
        scaled(np.array([1.0, np.inf]), "rank")


def painted(coords, side, values, origin, size, downsample):
    """Paint every level-0 pixel, then average blocks of them: slow, and plainly right."""
    columns, rows = (-(-length // downsample) for length in size)
    total, count = np.zeros((2, rows * downsample, columns * downsample))
    for (x, y), value in zip(coords - np.array(origin), values, strict=True):
        window = (
            slice(max(y, 0), max(min(y + side, size[1]), 0)),
            slice(max(x, 0), max(min(x + side, size[0]), 0)),
        )
        total[window] += value
        count[window] += 1
    blocks = [
        image.reshape(rows, downsample, columns, downsample).sum(axis=(1, 3))
        for image in (total, count)
    ]
    covered = blocks[1] > 0
    return np.where(covered, blocks[0] / np.where(covered, blocks[1], 1), np.nan)


@pytest.mark.parametrize("downsample", [1, 2, 16, 64, 512])
@pytest.mark.parametrize("start", [(0, 0), (37, 1011)])
def test_on_a_grid_every_pixel_is_its_patch_to_the_last_bit(rng, downsample, start):
    coords = rng.permutation(grid(4, 3, 512, start))[:9]
    # From 1e-12 to 1e6: running sums over the map would drown the small ones.
    values = (10.0 ** rng.uniform(-12, 6, len(coords))).astype(np.float32)
    found = score_map(coords, 512, values, downsample=float(downsample), most_pixels=4_000_000)
    assert found.origin == tuple(coords.min(axis=0))
    each = 512 // downsample
    seen = np.zeros(found.values.shape, dtype=bool)
    for (x, y), value in zip(coords - found.origin, values, strict=True):
        rows = slice(y // downsample, y // downsample + each)
        columns = slice(x // downsample, x // downsample + each)
        assert (found.values[rows, columns] == value).all()
        seen[rows, columns] = True
    assert np.array_equal(np.isfinite(found.values), seen)


def test_with_the_slide_the_map_begins_at_its_corner(rng):
    coords, values = grid(3, 2, 512, (1024, 512)), rng.random(6)
    found = score_map(coords, 512, values, slide_size=(4000, 3000), downsample=128.0)
    assert found.values.shape == (24, 32)
    assert found.origin == (0, 0)
    assert found.extent == (0, 32 * 128, 24 * 128, 0)
    blocks = np.kron(values.reshape(2, 3).astype(np.float32), np.ones((4, 4), np.float32))
    assert np.array_equal(found.values[4:12, 8:20], blocks)
    assert np.isfinite(found.values).sum() == blocks.size


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    side=st.integers(1, 40),
    downsample=st.integers(1, 50),
    num=st.integers(1, 12),
    has_slide=st.booleans(),
)
def test_patches_anywhere_are_as_if_painted_one_by_one(seed, side, downsample, num, has_slide):
    rng = np.random.default_rng(seed)
    coords = rng.integers(-30, 120, (num, 2))
    coords[0] = 20, 30  # at least one lies on the slide
    values = rng.normal(size=num)
    size = (101, 67) if has_slide else tuple((np.ptp(coords, axis=0) + side).tolist())
    found = score_map(
        coords,
        side,
        values,
        slide_size=(101, 67) if has_slide else None,
        downsample=float(downsample),
    )
    origin = (0, 0) if has_slide else tuple(coords.min(axis=0))
    assert found.origin == origin
    expected = painted(coords, side, values, origin, size, downsample)
    np.testing.assert_allclose(found.values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("downsample", [62.5, 7.3, 1 / 3, 99.99])
def test_a_fraction_as_downsample_is_area_weighted(rng, downsample):
    shapely = pytest.importorskip("shapely", reason="pip install '.[slides]'")
    side = 64 if downsample > 1 else 3
    coords, values = rng.integers(0, 4 * side, (5, 2)), rng.random(5)
    found = score_map(coords, side, values, slide_size=(5 * side, 4 * side), downsample=downsample)
    rows, columns = np.indices(found.values.shape)
    pixels = shapely.box(
        *(columns * downsample, rows * downsample),
        *((columns + 1) * downsample, (rows + 1) * downsample),
    )
    slide = shapely.box(0, 0, 5 * side, 4 * side)
    squares = [shapely.box(x, y, x + side, y + side) for x, y in coords]
    areas = [
        shapely.area(shapely.intersection(pixels, shapely.intersection(square, slide)))
        for square in squares
    ]
    area = np.sum(areas, axis=0)
    covered = area > 1e-6 * downsample**2
    assert np.array_equal(np.isfinite(found.values), covered)
    expected = np.tensordot(values, np.array(areas), axes=1)[covered] / area[covered]
    np.testing.assert_allclose(found.values[covered], expected, rtol=1e-6)


@pytest.mark.parametrize(("side", "parts"), [(7, 55), (7, 10), (512, 3), (96, 41)])
def test_a_fraction_that_fits_leaves_no_slivers(side, parts):
    # 55 times 7/55 is less than 7 in the computer: patches end beside pixels by rounding.
    coords = grid(3, 3, side)[::2]
    found = score_map(coords, side, np.arange(5.0) + 1, downsample=side / parts)
    patch = np.ones((parts, parts))
    expected = np.kron([[1, np.nan, 2], [np.nan, 3, np.nan], [4, np.nan, 5]], patch)
    assert np.array_equal(found.values, expected, equal_nan=True)


def test_overlapping_windows_are_averaged():
    found = score_map(np.array([[0, 0], [2, 0]]), 4, np.array([1.0, 3.0]), downsample=1.0)
    assert found.values[0].tolist() == [1, 1, 2, 2, 3, 3]
    twice = score_map(np.array([[0, 0], [0, 0]]), 4, np.array([1.0, 3.0]), downsample=4.0)
    assert twice.values.tolist() == [[2]]


def test_an_unknown_score_leaves_its_place_to_others():
    values = np.array([1.0, np.nan, np.nan])
    found = score_map(np.array([[0, 0], [2, 0], [6, 0]]), 4, values, downsample=2.0)
    np.testing.assert_array_equal(found.values[0], [1, 1, np.nan, np.nan, np.nan])


def test_what_is_beyond_the_slide_is_cut_off():
    coords = np.array([[-3, -3], [8, 8], [50, 50], [-20, 0]])
    values = np.array([1.0, 2.0, 3.0, 4.0])
    found = score_map(coords, 4, values, slide_size=(10, 10), downsample=1.0)
    assert found.values.shape == (10, 10)
    assert found.values[0, 0] == 1
    assert (found.values[8:, 8:] == 2).all()
    assert np.isfinite(found.values).sum() == 1 + 4


@pytest.mark.parametrize(
    ("side", "size", "expected"),
    [
        (512, (100_000, 80_000), 64),  # 45 would do; 64 divides 512
        (512, (1000, 1000), 1),
        (500, (100_000, 80_000), 50),
        (251, (100_000, 80_000), 45),  # a prime: what divides it is far too coarse
        (16, (100_000, 80_000), 45),  # pixels larger than patches
    ],
)
def test_the_downsample_divides_the_side_where_it_can(side, size, expected):
    found = score_map(np.zeros((1, 2), int), side, np.ones(1), slide_size=size)
    assert found.downsample == expected
    assert found.values.size <= 4_000_000


@pytest.mark.parametrize("most", [1, 2, 10, 99, 1000])
def test_the_map_never_has_more_pixels_than_allowed(most):
    for size in ((1, 1), (7, 3), (1000, 1), (999, 1001)):
        found = score_map(np.zeros((1, 2), int), 3, np.ones(1), slide_size=size, most_pixels=most)
        assert found.values.size <= most


def test_heavy_overlap_is_painted_more_coarsely(monkeypatch, rng):
    coords = rng.integers(0, 100, (50, 2))
    fine = score_map(coords, 60, np.ones(50))
    monkeypatch.setattr("sgpmil.explanation.maps._MOST_PAINTED", 50 * 100)
    coarse = score_map(coords, 60, np.ones(50))
    assert (fine.downsample, coarse.downsample) == (1, 6)


def test_patches_in_parts_give_the_same_map(monkeypatch, rng):
    coords, values = rng.integers(0, 500, (300, 2)), rng.random(300)
    whole = score_map(coords, 32, values, downsample=8.0)
    monkeypatch.setattr("sgpmil.explanation.maps._AT_ONCE", 1)
    parts = score_map(coords, 32, values, downsample=8.0)
    assert np.array_equal(whole.values, parts.values, equal_nan=True)


def test_two_hundred_thousand_patches_take_little_memory(rng):
    coords = grid(500, 400, 512, (37, 11))
    values = rng.random(len(coords)).astype(np.float32)
    tracemalloc.start()
    found = score_map(coords, 512, values, slide_size=(256_100, 204_900))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300 * 2**20
    assert found.downsample == 128
    # The middle of a patch, which begins at 37 and 11, whatever pixels its edges cut.
    picked = rng.integers(len(coords), size=1000)
    middle = ((coords[picked] + 256) // 128).astype(int)
    assert np.array_equal(found.values[middle[:, 1], middle[:, 0]], values[picked])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": np.ones(2)}, "2 scores for 3 patches"),
        ({"side": 0}, "a side of 0"),
        ({"values": np.array([1.0, np.inf, 1.0])}, "infinite"),
        ({"values": np.array([1.0, 1e39, 1.0])}, "infinite"),
        ({"downsample": 0.0}, "downsample greater than zero, but got 0"),
        ({"downsample": float("nan")}, "downsample greater than zero, but got nan"),
        ({"downsample": 0.001}, r"at most 4,000,000 pixels, but a downsample of 0.001 makes it"),
        ({"slide_size": (0, 10)}, r"a slide of \(0, 10\)"),
        ({"most_pixels": 0}, "at most 0 pixels"),
        ({"slide_size": (5, 5)}, r"all lie outside, the first at \(10, 20\)"),
    ],
)
def test_what_cannot_be_a_map_is_refused_in_a_sentence(change, message):
    given = {
        "coords": np.array([[10, 20], [14, 20], [18, 20]]),
        "side": 4,
        "values": np.ones(3),
    } | change
    # Without the types' own check, which speaks first of arrays that do not fit each other.
    function = getattr(score_map, "__wrapped__", score_map)
    with pytest.raises(ExplanationError, match=message):
        function(given.pop("coords"), given.pop("side"), given.pop("values"), **given)


def test_an_empty_slide_is_refused():
    with pytest.raises(ExplanationError, match="0 scores for 0 patches"):
        score_map(np.zeros((0, 2), int), 4, np.zeros(0))


def test_the_extent_is_as_matplotlib_takes_it():
    found = ScoreMap(np.zeros((2, 3), np.float32), 62.5, (10, 20))
    assert found.extent == (10, 197.5, 145, 20)


def sampled_by_hand(drawn, coords, side, labels, priority):
    """Ask for every pixel's centre which patches hold it."""
    height, width = drawn.values.shape
    expected = np.full((height, width), NO_PATCH)
    for row in range(height):
        for column in range(width):
            x = drawn.origin[0] + (column + 0.5) * drawn.downsample
            y = drawn.origin[1] + (row + 0.5) * drawn.downsample
            holds = [
                i for i, (u, v) in enumerate(coords) if u <= x < u + side and v <= y < v + side
            ]
            if holds:
                expected[row, column] = labels[max(holds, key=lambda i: priority[i])]
    return expected


@pytest.mark.parametrize("most_pixels", [100_000, 300, 60])
def test_every_pixel_is_the_patch_at_its_centre(most_pixels):
    rng = np.random.default_rng(0)
    coords = rng.integers(-20, 40, (12, 2))
    labels, priority = rng.permutation(12), rng.uniform(size=12)
    drawn = label_map(coords, 9, labels, priority, most_pixels=most_pixels)
    expected = sampled_by_hand(drawn, coords, 9, labels, priority)
    np.testing.assert_array_equal(drawn.values, expected)


def test_patches_on_a_grid_are_exact_with_a_pixel_each():
    coords = np.array([[512, 256], [768, 256], [512, 768]])
    drawn = label_map(coords, 256, np.array([4, 0, 79]))
    np.testing.assert_array_equal(drawn.values, [[4, 0], [-1, -1], [79, -1]])
    assert drawn.downsample == 256
    assert drawn.origin == (512, 256)
    assert drawn.extent == (512, 1024, 1024, 256)


def test_half_overlapping_patches_are_exact():
    coords = np.array([[0, 0], [4, 0]])
    drawn = label_map(coords, 8, np.array([1, 2]), np.array([0.9, 0.1]))
    np.testing.assert_array_equal(drawn.values, [[1, 1, 2], [1, 1, 2]])


def test_many_patches_give_a_small_raster():
    side = 224
    x, y = np.meshgrid(np.arange(500), np.arange(400))
    coords = side * np.stack([x.ravel(), y.ravel()], axis=1)
    labels = (np.arange(len(coords)) * 7) % 80
    drawn = label_map(coords, side, labels)
    np.testing.assert_array_equal(drawn.values, labels.reshape(400, 500))
    # Off the grid by a pixel: no longer one pixel a patch, and still no more than asked for.
    shifted = coords + np.array([1, 0]) * (coords[:, 1:] > 0)
    assert label_map(shifted, side, labels, most_pixels=10**6).values.size < 1.1 * 10**6


def test_painting_in_pieces_makes_no_difference(monkeypatch):
    rng = np.random.default_rng(1)
    coords, labels = rng.integers(0, 50, (40, 2)), rng.integers(0, 80, 40)
    priority = rng.uniform(size=40)
    whole = label_map(coords, 9, labels, priority).values
    monkeypatch.setattr("sgpmil.explanation.maps._AT_ONCE", 100)
    np.testing.assert_array_equal(label_map(coords, 9, labels, priority).values, whole)


def test_nothing_to_draw_is_refused():
    nothing = np.zeros((0, 2), dtype=np.int64)
    with pytest.raises(ExplanationError, match="got 0 of side 4"):
        label_map(nothing, 4, np.zeros(0, dtype=np.int64))
    with pytest.raises(ExplanationError, match="got 1 of side 0"):
        label_map(np.array([[0, 0]]), 0, np.array([1]))
