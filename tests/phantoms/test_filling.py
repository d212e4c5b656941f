import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")

import shapely
from shapely import Point, box

from sgpmil.phantoms.filling import Window, layer_of
from sgpmil.phantoms.outlines import blob


def by_shapely(area, window):
    x, y = np.meshgrid(
        window.x + np.arange(window.width) + 0.5, window.y + np.arange(window.height) + 0.5
    )
    return shapely.contains_xy(area, x, y)


def test_pixels_whose_centre_is_inside(rng):
    ring = blob(rng, (60.0, 50.0), 40.0, roughness=0.4)
    hole = blob(rng, (60.0, 50.0), 9.0, roughness=0.2)
    area = shapely.union(shapely.difference(ring, hole), blob(rng, (150.3, 20.1), 17.0))
    layer = layer_of([area])
    for window in (
        Window(-10, -10, 200, 130),
        Window(40, 30, 50, 40),  # begins inside
        Window(58, 48, 4, 4),  # within the hole
        Window(30, 45, 12, 3),
        Window(55, 0, 1, 120),
        Window(500, 500, 7, 5),
    ):
        expected = by_shapely(area, window)
        assert (layer.fill(window) == expected).all()
        assert layer.touches(window) or not expected.any()


def test_within_and_without():
    layer = layer_of([box(-100, -100, 100, 100)])
    assert layer.fill(Window(0, 0, 5, 6)).all()
    assert layer.fill(Window(0, 0, 5, 6)).shape == (6, 5)
    assert not layer.fill(Window(200, 0, 5, 6)).any()
    assert not layer_of([]).fill(Window(0, 0, 5, 6)).any()
    assert not layer_of([shapely.Polygon()]).touches(Window(0, 0, 5, 6))


def test_many_areas_at_once(rng):
    areas = [Point(x, y).buffer(rng.uniform(2, 9)) for x in range(0, 200, 20) for y in (5, 30)]
    window = Window(13, 3, 160, 40)
    expected = by_shapely(shapely.union_all(areas), window)
    assert (layer_of(areas).fill(window) == expected).all()
