import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.errors import PredictionError
from sgpmil.evaluation.localisation.detections import find_detections


def suppressed(scores, centres, radius):
    """Greedy non-maximum suppression over a list."""
    left = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    kept = []
    while left:
        best = left.pop(0)
        kept.append(best)
        left = [i for i in left if np.hypot(*(centres[i] - centres[best])) > radius]
    return kept


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.1, 0.5, 0.5, 0.9, 1.0]), st.integers(0, 8), st.integers(0, 8)
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([1.0, 10.0, 14.2, 25.0, 1000.0]),
)
def test_against_a_loop(patches, radius):
    scores = np.array([patch[0] for patch in patches])
    coords = np.array([patch[1:] for patch in patches]) * 10
    found = find_detections(scores, coords, 10, radius)
    centres = coords + 5.0
    kept = suppressed(scores, centres, radius)
    np.testing.assert_array_equal(found.scores, scores[kept])
    np.testing.assert_array_equal(found.points, centres[kept])


def test_radius_zero_keeps_every_patch():
    scores, coords = np.array([0.2, 0.9, 0.2]), np.array([[0, 0], [0, 0], [64, 0]])
    found = find_detections(scores, coords, 64, 0.0)
    np.testing.assert_array_equal(found.scores, [0.9, 0.2, 0.2])
    np.testing.assert_array_equal(found.points, [[32, 32], [32, 32], [96, 32]])
    with pytest.raises(PredictionError, match="radius of at least 0"):
        find_detections(scores, coords, 64, -1.0)
