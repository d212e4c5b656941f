import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")

import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely import box
from shapely.affinity import rotate

from sgpmil.slides.annotations.mask import AnnotationMask, mask_polygons
from sgpmil.slides.annotations.patch_labels import patch_coverage, patch_labels
from sgpmil.slides.annotations.regions import (
    CAMELYON,
    AnnotationError,
    Annotations,
    Region,
    select_regions,
)

from .drawings import circle

SIDES = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 30), st.integers(1, 30))


def grid(columns, rows, pitch, start=0):
    x, y = np.meshgrid(np.arange(columns), np.arange(rows))
    return np.stack([x.ravel(), y.ravel()], axis=1) * pitch + start


def drawn(*polygons):
    return Annotations(tuple(Region(polygon) for polygon in polygons))


def overlap(coords, size, rectangle):
    """Area that squares share with a rectangle, by the formula."""
    left, top, right, bottom = rectangle
    x, y = coords.T
    width = np.minimum(x + size, right) - np.maximum(x, left)
    height = np.minimum(y + size, bottom) - np.maximum(y, top)
    return np.clip(width, 0, None) * np.clip(height, 0, None)


@settings(deadline=None)
@given(SIDES, st.integers(1, 13), st.integers(1, 15))
def test_rectangle_with_a_hole(sides, size, pitch):
    x, y, width, height = sides
    outer = (x, y, x + width, y + height)
    hole = (x + width / 4, y + height / 3, x + width / 2, y + height / 2)
    regions = [Region(box(*outer), "Tumor"), Region(box(*hole), "Exclusion")]
    coords = grid(8, 8, pitch)
    found = patch_coverage(coords, size, select_regions(regions, CAMELYON, "here"))
    expected = (overlap(coords, size, outer) - overlap(coords, size, hole)) / size**2
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("reach", [1.0, 3.0, 5.0, 6.5, 9.0, 10.0, 14.0])
def test_square_on_its_corner(reach):
    # |x| + |y| <= reach around the centre of a patch of side 10.
    diamond = rotate(box(-1, -1, 1, 1), 45)
    diamond = shapely.transform(diamond, lambda c: c / 2**0.5 * reach + [105, 205])
    if reach <= 5:
        expected = 2 * reach**2
    elif reach <= 10:
        expected = 100 - 2 * (10 - reach) ** 2
    else:
        expected = 100
    found = patch_coverage(np.array([[100, 200]]), 10, drawn(diamond))
    assert found[0] == pytest.approx(expected / 100, abs=1e-12)


def test_overlapping_regions_count_once():
    found = patch_coverage(np.array([[0, 0]]), 10, drawn(box(0, 0, 6, 10), box(4, 0, 8, 10)))
    assert found[0] == pytest.approx(0.8)


def test_outlines_of_many_corners(rng):
    # Thousands of corners are cut into pieces first; areas must stay what they are.
    wavy = circle(600, 500, 1, corners=7000)
    angle = np.linspace(0, 2 * np.pi, 7000, endpoint=False)
    radius = 300 + 60 * np.sin(9 * angle) + rng.normal(size=7000)
    wavy = [600, 500] + (wavy - [600, 500]) * radius[:, None]
    outline = shapely.make_valid(shapely.Polygon(wavy))
    island = shapely.Polygon(circle(100, 100, 80, corners=900))
    coords = grid(70, 60, 16)
    found = patch_coverage(coords, 16, drawn(outline, island))
    total = shapely.union_all([outline, island])
    assert found.sum() * 256 == pytest.approx(total.area, rel=1e-9)
    some = rng.choice(len(coords), 300, replace=False)
    x, y = coords[some].T
    expected = shapely.area(shapely.intersection(total, box(x, y, x + 16, y + 16))) / 256
    np.testing.assert_allclose(found[some], expected, atol=1e-9)
    assert (found == 0).any()
    assert (found == 1).any()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([1.0, 2.0, 2.5, 7.3]),
    st.integers(1, 20),
)
def test_mask_against_the_polygons_of_its_pixels(seed, rows, columns, downsample, size):
    rng = np.random.default_rng(seed)
    mask = AnnotationMask(rng.random((rows, columns)) < 0.5, downsample)
    width, height = mask.slide_size
    limits = [max(1, int(np.ceil(width)) - 1), max(1, int(np.ceil(height)) - 1)]
    coords = rng.integers(0, limits, size=(20, 2))
    found = patch_coverage(coords, size, mask)
    expected = patch_coverage(coords, size, mask_polygons(mask))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_drawn_circle_and_its_raster_agree():
    outline = shapely.Polygon(circle(500, 400, 250, corners=2000))
    centre = np.arange(1000) + 0.5
    pixels = shapely.contains_xy(outline, *np.meshgrid(centre, centre))
    coords = grid(15, 15, 64)
    mask = patch_coverage(coords, 64, AnnotationMask(pixels, 1.0))
    np.testing.assert_allclose(mask, patch_coverage(coords, 64, drawn(outline)), atol=0.005)


def test_labels():
    coords = np.array([[0, 0], [5, 0], [6, 0], [10, 0]])
    regions = drawn(box(0, 0, 10, 10))
    np.testing.assert_allclose(patch_coverage(coords, 10, regions), [1, 0.5, 0.4, 0])
    assert patch_labels(coords, 10, regions).tolist() == [1, 1, 0, 0]
    assert patch_labels(coords, 10, regions, 0.4).tolist() == [1, 1, 1, 0]
    assert patch_labels(coords, 10, regions, 1.0).tolist() == [1, 0, 0, 0]
    # Touching is no overlap.
    assert patch_labels(coords, 10, regions, 0.0).tolist() == [1, 1, 1, 0]
    pixels = np.zeros((100, 100), dtype=bool)
    pixels[:10, :10] = True
    assert patch_labels(coords, 10, AnnotationMask(pixels, 1.0), 0.0).tolist() == [1, 1, 1, 0]


def test_rounding_is_no_overlap(rng):
    # Sums of hundreds of thousands of pixels on the way to a patch that shares none of them.
    pixels = np.zeros((2000, 900), dtype=bool)
    pixels[:500] = rng.random((500, 900)) < 0.5
    coords = rng.integers([0, 3700], [6500, 14500], size=(5000, 2))
    assert not patch_labels(coords, 57, AnnotationMask(pixels, 7.3), 0.0).any()


def test_unknown_tissue():
    annotations = Annotations(
        (Region(box(0, 0, 10, 10)),), (Region(box(20, 0, 34, 10)),), unannotated="unknown"
    )
    coords = np.array([[0, 0], [6, 0], [20, 0], [30, 0], [16, 0]])
    assert patch_labels(coords, 10, annotations).tolist() == [1, -1, 0, -1, 0]
    assert patch_labels(coords, 10, annotations, 0.0).tolist() == [1, 1, 0, 0, 0]


def test_no_patches_and_no_regions():
    none = np.zeros((0, 2), dtype=np.int64)
    assert patch_coverage(none, 10, drawn(box(0, 0, 1, 1))).shape == (0,)
    assert patch_coverage(np.array([[0, 0]]), 10, drawn()).tolist() == [0]


def test_impossible_arguments():
    coords = np.array([[0, 0], [90, 0]])
    with pytest.raises(AnnotationError, match="side above 0, but got 0"):
        patch_coverage(coords, 0, drawn(box(0, 0, 1, 1)))
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(AnnotationError, match="between 0 and 1"):
            patch_labels(coords, 10, drawn(box(0, 0, 1, 1)), wrong)
    mask = AnnotationMask(np.ones((10, 10), dtype=bool), 8.0)
    with pytest.raises(AnnotationError, match=r"80 × 80 level-0 pixels, but got one at \(90, 0\)"):
        patch_coverage(coords, 10, mask)
    # A patch may reach beyond the slide; what is beyond is not positive.
    assert patch_coverage(np.array([[75, 0]]), 10, mask)[0] == pytest.approx(0.5)
