import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")

import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely import box
from shapely.affinity import rotate, translate

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.lesions import find_lesions, major_axis
from sgpmil.slides.annotations.mask import AnnotationMask
from sgpmil.slides.annotations.regions import Annotations, Region

from .drawings import circle


def drawn(*polygons):
    return Annotations(tuple(Region(polygon) for polygon in polygons))


@settings(deadline=None)
@given(st.floats(0.5, 50), st.floats(0.5, 50), st.floats(0, 180), st.floats(-1e5, 1e5))
def test_major_axis_of_rectangles(width, height, angle, shift):
    area = translate(rotate(box(0, 0, width, height), angle), shift, -shift)
    assert major_axis(area) == pytest.approx(4 * max(width, height) / 12**0.5, rel=1e-6)
    assert major_axis(area.reverse()) == pytest.approx(major_axis(area))


def test_major_axis_of_an_ellipse_is_its_diameter():
    ellipse = circle(0, 0, 1, corners=5000) * [30, 12]
    assert major_axis(rotate(shapely.Polygon(ellipse), 33)) == pytest.approx(60, rel=1e-5)


def test_major_axis_against_the_covariance_of_points(rng):
    outline = shapely.Polygon([(0, 0), (9, 1), (7, 3), (3, 4), (2, 9)])
    points = rng.uniform(0, 9, size=(200_000, 2))
    inside = points[shapely.contains_xy(outline, *points.T)]
    expected = 4 * np.sqrt(np.linalg.eigvalsh(np.cov(inside.T)).max())
    assert major_axis(outline) == pytest.approx(expected, rel=0.01)


def test_regions_that_meet_are_one_lesion():
    found = find_lesions(drawn(box(0, 0, 10, 10), box(5, 5, 15, 15), box(40, 0, 50, 10)))
    assert len(found.outlines) == found.num_counted == 2


def test_merge_distance():
    regions = drawn(box(0, 0, 10, 10), box(18, 0, 28, 10))
    assert len(find_lesions(regions, merge_distance=7.9).outlines) == 2
    merged = find_lesions(regions, merge_distance=8.1)
    assert len(merged.outlines) == 1
    # Each lesion grows by half of the distance.
    points = np.array([[-4.0, 5.0], [-4.1, 5.0], [14.0, 5.0]])
    assert merged.hits(points).tolist() == [0, -1, 0]


def test_holes_are_filled_and_swallow_their_islands():
    ring = shapely.Polygon(circle(0, 0, 20), [circle(0, 0, 10)])
    island = shapely.Polygon(circle(0, 0, 3))
    found = find_lesions(drawn(ring, island))
    assert len(found.outlines) == 1
    assert found.hits(np.array([[0.0, 0.0], [6.0, 0.0], [25.0, 0.0]])).tolist() == [0, 0, -1]


def test_small_lesions_do_not_count():
    small, large = shapely.Polygon(circle(0, 0, 10)), shapely.Polygon(circle(100, 0, 30))
    found = find_lesions(drawn(small, large), min_diameter=40.0)
    sizes = [major_axis(outline) for outline in found.outlines]
    np.testing.assert_allclose(sorted(sizes), [20, 60], rtol=1e-3)
    assert found.counted.tolist() == [size > 40 for size in sizes]
    assert found.num_counted == 1
    # The diameter is that of the lesion as it has grown.
    grown = find_lesions(drawn(small, large), merge_distance=21.0, min_diameter=40.0)
    assert grown.num_counted == 2


def test_mask_and_polygons_agree():
    pixels = np.zeros((40, 60), dtype=bool)
    pixels[5:15, 5:15] = pixels[20:30, 5:50] = pixels[0:4, 50:60] = True
    corners = [box(20, 20, 60, 60), box(20, 80, 200, 120), box(200, 0, 240, 16)]
    points = np.random.default_rng(0).uniform(0, 240, size=(400, 2))
    mask, polygons = find_lesions(AnnotationMask(pixels, 4.0)), find_lesions(drawn(*corners))
    assert len(mask.outlines) == len(polygons.outlines) == 3
    inside = [shapely.contains_xy(shapely.union_all(corners), *points.T)]
    np.testing.assert_array_equal(mask.hits(points) >= 0, inside[0])
    np.testing.assert_array_equal(polygons.hits(points) >= 0, inside[0])
    same = [len(set(mask.hits(points)[polygons.hits(points) == k])) for k in range(3)]
    assert same == [1, 1, 1]


def test_no_lesions():
    found = find_lesions(drawn())
    assert found.num_counted == 0
    assert found.hits(np.array([[1.0, 2.0]])).tolist() == [-1]
    assert find_lesions(drawn(box(0, 0, 1, 1))).hits(np.zeros((0, 2))).shape == (0,)
    with pytest.raises(AnnotationError, match="at least 0 for lesions, but got -1"):
        find_lesions(drawn(), merge_distance=-1.0)
