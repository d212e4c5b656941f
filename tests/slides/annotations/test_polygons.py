import math

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")

from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.slides.annotations.polygons import area_of_rings

from .drawings import circle, rectangle


def ring(points):
    return np.array(points, dtype=np.float64)


def test_figure_of_eight_keeps_both_lobes():
    found = area_of_rings(ring([(0, 0), (2, 2), (2, 0), (0, 2)]))
    assert found.area == pytest.approx(2)
    assert found.is_valid


def test_pentagram_keeps_its_middle():
    turns = 4 * np.pi * np.arange(5) / 5
    found = area_of_rings(np.stack([np.cos(turns), np.sin(turns)], axis=1))
    inner = math.sin(math.radians(18)) / math.sin(math.radians(54))
    assert found.area == pytest.approx(5 * inner * math.sin(math.radians(36)))
    assert found.is_valid


@pytest.mark.parametrize(
    "points",
    [
        [(0, 0)],
        [(0, 0), (1, 1)],
        [(0, 0), (1, 1), (0, 0)],
        [(0, 0), (1, 1), (2, 2)],
        [(3, 3), (3, 3), (3, 3), (3, 3)],
    ],
)
def test_what_has_no_area_is_none(points):
    assert area_of_rings(ring(points)) is None


def test_closed_or_not_and_either_way_round():
    corners = rectangle(1, 1, 4, 3)
    for points in (corners, [*corners, corners[0]], corners[::-1]):
        assert area_of_rings(ring(points)).area == pytest.approx(6)


def test_holes_are_cut_out():
    outer, hole, line = rectangle(0, 0, 10, 10), rectangle(2, 2, 5, 4), [(7, 7), (8, 8)]
    found = area_of_rings(ring(outer), [ring(hole), ring(line)])
    assert found.area == pytest.approx(94)
    assert area_of_rings(ring(hole), [ring(outer)]) is None


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 10), min_size=3, max_size=40), st.floats(-1e5, 1e5))
def test_area_of_star_shaped_outlines(radii, centre):
    angle = np.linspace(0, 2 * np.pi, len(radii), endpoint=False)
    points = centre + np.stack([radii * np.cos(angle), radii * np.sin(angle)], axis=1)
    x, y = (points - centre).T
    shoelace = abs((x * np.roll(y, -1) - y * np.roll(x, -1)).sum()) / 2
    assert area_of_rings(points).area == pytest.approx(shoelace, rel=1e-6)


def test_circle():
    expected = 400 / 2 * math.sin(2 * math.pi / 400) * 9
    assert area_of_rings(circle(5, 5, 3)).area == pytest.approx(expected)
