import numpy as np
import pytest

from sgpmil.phantoms.stain import Stain, draw_stain


def test_tables_follow_beer_and_lambert():
    stain = Stain((0.6, 0.7, 0.3), (0.1, 0.9, 0.3), (240.0, 238.0, 242.0), 0.4)
    blue, pink = (table[:, 0].astype(float) for table in stain.tables())
    assert (blue[0] == (240, 238, 242)).all()
    assert (pink[0] == 255).all()
    # Twice the concentration is twice the absorbance.
    for table, absorption in ((blue, stain.haematoxylin), (pink, stain.eosin)):
        absorbance = -np.log(table / table[0])
        np.testing.assert_allclose(absorbance[120], 2 * absorbance[60], atol=0.02)
        ratio = absorbance[100] / absorbance[100, 1]
        np.testing.assert_allclose(ratio, np.array(absorption) / absorption[1], atol=0.03)


def test_nuclei_are_blue_and_the_rest_is_pink_on_every_slide():
    drawn = [draw_stain(np.random.default_rng(seed)) for seed in range(50)]
    for stain in drawn:
        blue, pink = (table[:, 0].astype(int) for table in stain.tables())
        assert blue[150, 2] > blue[150, 0] > 20
        assert pink[80, 0] > pink[80, 2] > pink[80, 1]
        assert min(stain.background) > 225
        assert max(stain.background) < 255
    assert np.std([stain.eosin for stain in drawn], axis=0).min() > 0.02


def test_same_seed_same_stain():
    assert draw_stain(np.random.default_rng(4)) == draw_stain(np.random.default_rng(4))
    assert draw_stain(np.random.default_rng(4)) != draw_stain(np.random.default_rng(5))


@pytest.mark.parametrize("value", [0, 100, 255])
def test_colours_darken_with_concentration(value):
    blue, _ = draw_stain(np.random.default_rng(0)).tables()
    assert (np.diff(blue[:, 0].astype(int), axis=0) <= 0).all()
    assert blue[value].shape == (1, 3)
