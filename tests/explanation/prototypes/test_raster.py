import numpy as np
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.explanation.prototypes import label_map
from sgpmil.explanation.prototypes.raster import NO_PATCH


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
    monkeypatch.setattr("sgpmil.explanation.prototypes.raster._AT_ONCE", 100)
    np.testing.assert_array_equal(label_map(coords, 9, labels, priority).values, whole)


def test_nothing_to_draw_is_refused():
    nothing = np.zeros((0, 2), dtype=np.int64)
    with pytest.raises(ExplanationError, match="got 0 of side 4"):
        label_map(nothing, 4, np.zeros(0, dtype=np.int64))
    with pytest.raises(ExplanationError, match="got 1 of side 0"):
        label_map(np.array([[0, 0]]), 0, np.array([1]))
