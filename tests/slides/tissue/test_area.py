import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")
pytest.importorskip("cv2", reason="pip install 'sgpmil[slides]'")

import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.slides.annotations.mask import AnnotationMask, mask_polygons
from sgpmil.slides.tissue.area import outline


def area_of(mask, scale=1.0):
    rows, columns = mask.shape
    return outline(mask, np.arange(columns + 1) * scale, np.arange(rows + 1) * scale)


@settings(deadline=None, max_examples=300)
@given(
    st.integers(1, 14),
    st.integers(1, 14),
    st.floats(0, 1),
    st.sampled_from([1.0, 16.0, 7.5]),
    st.integers(0, 10**6),
)
def test_covers_exactly_the_pixels(rows, columns, share, scale, seed):
    # Dense random masks are full of holes, islands in holes, and pixels that touch at corners.
    mask = np.random.default_rng(seed).random((rows, columns)) < share
    found = area_of(mask, scale)
    assert found.is_valid
    assert found.area == mask.sum() * scale**2
    union_of_pixels = mask_polygons(AnnotationMask(mask, scale)).positive_area()
    assert found.symmetric_difference(union_of_pixels).area == 0


@pytest.mark.parametrize(
    "rows",
    [
        ["#"],
        ["#.", ".#"],
        [".#", "#."],
        ["#.#", ".#.", "#.#"],
        ["###", "#.#", "###"],
        ["####", "#.##", "##.#", "####"],
        ["#####", "#...#", "#.#.#", "#...#", "#####"],
        ["##...", "##...", "..##.", "..##.", "....#"],
    ],
)
def test_corners_holes_and_islands(rows):
    mask = np.array([[pixel == "#" for pixel in row] for row in rows])
    found = area_of(mask, 4.0)
    assert found.is_valid
    pixels = [
        shapely.box(4 * x, 4 * y, 4 * x + 4, 4 * y + 4) for y, x in np.argwhere(mask).tolist()
    ]
    assert found.equals(shapely.union_all(pixels))


def test_a_hole_is_a_hole_of_its_piece():
    mask = np.ones((5, 6), dtype=bool)
    mask[2, 2:4] = False
    (piece,) = area_of(mask, 2.0).geoms
    (hole,) = piece.interiors
    assert piece.exterior.bounds == (0, 0, 12, 10)
    assert hole.bounds == (4, 4, 8, 6)


def test_only_corners_are_kept():
    mask = np.zeros((40, 50), dtype=bool)
    mask[3:30, 5:45] = True
    (piece,) = area_of(mask).geoms
    assert len(piece.exterior.coords) == 5


def test_edges_need_not_be_equally_far_apart():
    found = outline(
        np.array([[True, False], [True, True]]),
        np.array([0.0, 3.0, 5.0]),
        np.array([0.0, 1.0, 4.0]),
    )
    assert found.equals(shapely.union(shapely.box(0, 0, 3, 4), shapely.box(3, 1, 5, 4)))


def test_nothing():
    assert area_of(np.zeros((3, 4), dtype=bool)).is_empty
