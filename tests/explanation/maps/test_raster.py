import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.errors import ExplanationError
from sgpmil.explanation.maps import ScoreMap, score_map


def grid(columns, rows, step, start=(0, 0)):
    x, y = np.meshgrid(np.arange(columns) * step + start[0], np.arange(rows) * step + start[1])
    return np.stack([x.ravel(), y.ravel()], axis=1)


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
    assert np.array_equal(found.covered, seen)


def test_with_the_slide_the_map_begins_at_its_corner(rng):
    coords, values = grid(3, 2, 512, (1024, 512)), rng.random(6)
    found = score_map(coords, 512, values, slide_size=(4000, 3000), downsample=128.0)
    assert found.values.shape == (24, 32)
    assert found.origin == (0, 0)
    assert found.extent == (0, 32 * 128, 24 * 128, 0)
    blocks = np.kron(values.reshape(2, 3).astype(np.float32), np.ones((4, 4), np.float32))
    assert np.array_equal(found.values[4:12, 8:20], blocks)
    assert found.covered.sum() == blocks.size


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
    shapely = pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")
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
    assert np.array_equal(found.covered, covered)
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
    assert found.covered.sum() == 1 + 4


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
    monkeypatch.setattr("sgpmil.explanation.maps.raster._MOST_PAINTED", 50 * 100)
    coarse = score_map(coords, 60, np.ones(50))
    assert (fine.downsample, coarse.downsample) == (1, 6)


def test_patches_in_parts_give_the_same_map(monkeypatch, rng):
    coords, values = rng.integers(0, 500, (300, 2)), rng.random(300)
    whole = score_map(coords, 32, values, downsample=8.0)
    monkeypatch.setattr("sgpmil.explanation.maps.raster._AT_ONCE", 1)
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
