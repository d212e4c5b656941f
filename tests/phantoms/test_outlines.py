import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")

import shapely

from sgpmil.phantoms.outlines import blob, ribbon, solid


@pytest.mark.parametrize("seed", range(10))
def test_blobs_are_valid_and_of_their_size(seed):
    rng = np.random.default_rng(seed)
    found = blob(rng, (100.0, -40.0), 80.0, elongation=2.0, roughness=0.3)
    assert found.is_valid
    assert found.geom_type == "Polygon"
    assert found.contains(shapely.Point(100, -40))
    assert 0.5 < found.area / (np.pi * 80**2) < 2.2
    corners = shapely.get_coordinates(shapely.minimum_rotated_rectangle(found))
    sides = np.sort(np.hypot(*np.diff(corners[:3], axis=0).T))
    assert sides[1] > 1.2 * sides[0]


def test_smooth_blob_is_an_ellipse(rng):
    found = blob(rng, (0.0, 0.0), 50.0, elongation=4.0, roughness=0.0, step=1.0)
    assert found.area == pytest.approx(np.pi * 50**2, rel=1e-3)
    assert shapely.minimum_bounding_radius(found) == pytest.approx(100, rel=1e-3)


def test_ribbon_joins_its_ends(rng):
    start, end = np.array([0.0, 0.0]), np.array([500.0, 100.0])
    found = ribbon(rng, start, end, 40.0, bend=0.05)
    assert found.is_valid
    assert found.geom_type == "Polygon"
    assert found.distance(shapely.Point(start)) < 30
    assert found.distance(shapely.Point(end)) < 30
    assert found.area == pytest.approx(510 * 40, rel=0.35)


def test_solid_keeps_areas_only():
    bow_tie = shapely.Polygon([(0, 0), (2, 2), (2, 0), (0, 2)])
    assert solid(bow_tie).is_valid
    mixed = shapely.GeometryCollection(
        [shapely.box(0, 0, 1, 1), shapely.LineString([(5, 5), (6, 6)])]
    )
    assert solid(mixed).equals(shapely.box(0, 0, 1, 1))
    assert solid(shapely.Polygon()).is_empty
