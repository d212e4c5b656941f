import numpy as np
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.explanation.maps import patch_side, placed_coords


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
