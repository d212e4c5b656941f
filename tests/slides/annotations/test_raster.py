import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")

import shapely

from sgpmil.slides.annotations.mask import AnnotationMask
from sgpmil.slides.annotations.raster import rasterise
from sgpmil.slides.annotations.regions import Annotations, Region

from .drawings import circle


def test_centres_one_by_one():
    ring = shapely.Polygon(circle(300, 260, 200), [circle(300, 260, 90)])
    far = shapely.box(-50, -50, 60, 40)
    found = rasterise(Annotations((Region(ring), Region(far))), 32, (14, 20))
    for row in range(14):
        for column in range(20):
            centre = shapely.Point(32 * column + 16, 32 * row + 16)
            assert found[row, column] == (ring.contains(centre) or far.contains(centre))
    assert 0 < found.sum() < found.size


def test_mask(rng):
    pixels = rng.random((10, 12)) < 0.5
    mask = AnnotationMask(pixels, 4.0)
    np.testing.assert_array_equal(rasterise(mask, 4, (10, 12)), pixels)
    coarse = rasterise(mask, 8, (6, 7))
    assert coarse.shape == (6, 7)
    np.testing.assert_array_equal(coarse[:5, :6], pixels[1::2, 1::2])
    assert not coarse[5:].any()
    assert not coarse[:, 6:].any()
    fine = rasterise(mask, 2, (20, 24))
    np.testing.assert_array_equal(fine, np.repeat(np.repeat(pixels, 2, 0), 2, 1))


def test_nothing():
    assert not rasterise(Annotations(()), 8, (3, 4)).any()
