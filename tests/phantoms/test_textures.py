import numpy as np
from scipy import stats
from scipy.interpolate import BSpline

from sgpmil.phantoms.textures import draw, smooth_field


def test_draws_are_uniform_and_independent():
    i, j = np.meshgrid(np.arange(-100, 100), np.arange(-100, 100))
    a = draw(7, 0, i, j)
    assert stats.kstest(a.ravel(), "uniform").pvalue > 0.001
    for other in (draw(7, 1, i, j), draw(8, 0, i, j), draw(7, 0, i + 1, j), draw(7, 0, j, i)):
        assert abs(np.corrcoef(a.ravel(), other.ravel())[0, 1]) < 0.02


def test_a_draw_depends_on_its_cell_alone():
    i, j = np.meshgrid(np.arange(5, 9), np.arange(-3, 4))
    whole = draw(1, 2, i, j)
    assert (draw(1, 2, i[2:5, 1:3], j[2:5, 1:3]) == whole[2:5, 1:3]).all()


def test_field_is_the_cubic_spline_of_the_draws():
    x, y = np.array([3.7, 12.2]), np.array([-5.1])
    spacing, span = 4.0, np.arange(-6, 8)
    element = BSpline.basis_element([-2, -1, 0, 1, 2], extrapolate=False)

    def weights(at):
        return np.nan_to_num(element(at / spacing - span))

    values = 2 * draw(1, 0, span[None, :], span[:, None]) - 1
    by_hand = [weights(y[0]) @ values @ weights(column) for column in x]
    # The variance of the spline: of a uniform value, times the mean square of the weights.
    steps = np.linspace(0, 1, 1001)
    square = np.mean([(np.nan_to_num(element(t - span)) ** 2).sum() for t in steps])
    sd = np.sqrt(1 / 3) * square
    found = smooth_field(1, 0, spacing, x, y)[0]
    np.testing.assert_allclose(found, np.array(by_hand) / sd, rtol=2e-3)


def test_field_has_unit_spread():
    at = np.linspace(0, 1000, 400)
    field = smooth_field(0, 3, 10.0, at, at)
    assert abs(field.mean()) < 0.05
    assert abs(field.std() - 1) < 0.05
