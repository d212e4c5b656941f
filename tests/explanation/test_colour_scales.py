import matplotlib
import numpy as np
import pytest

from sgpmil.explanation.colour_scales import COLOUR_SCALES, colour_range, scaled_to_range
from sgpmil.explanation.map_layers import MapLimits

LIMITS = MapLimits(4.0, 2.0, 3.0, 1.0, 5.0, 1.0, 1.2)


@pytest.mark.parametrize("kind", COLOUR_SCALES)
def test_a_scale_has_the_colours_of_matplotlib(kind):
    scale = COLOUR_SCALES[kind]
    wanted = matplotlib.colormaps[scale.name](np.arange(256), bytes=True)[:, :3]
    # matplotlib cuts where we round.
    assert np.abs(scale.table().astype(int) - wanted.astype(int)).max() <= 1


def test_colours_of_a_signed_score_are_symmetric():
    assert colour_range("evidence", LIMITS, is_signed=True) == (-3.0, 3.0)
    assert colour_range("evidence", None, is_signed=True) == (-1.0, 1.0)
    assert colour_range("attention", LIMITS, is_signed=False) == (0.0, 4.0)


def test_colours_of_novelty_begin_at_the_ordinary_patch():
    assert colour_range("novelty", LIMITS, is_signed=False) == (1.0, 2.0)
    assert colour_range("novelty", None, is_signed=False) == (0.0, 1.0)


def test_scores_beyond_the_ends_share_the_last_colour():
    found = scaled_to_range(np.array([-9.0, 1.0, 2.0, 9.0]), (0.0, 4.0))
    assert found.tolist() == [0.0, 0.25, 0.5, 1.0]
