import pytest
import torch

from sgpmil.errors import SettingsError
from sgpmil.gp.means import MEANS, build_mean


def test_linear_mean_is_affine():
    torch.manual_seed(0)
    mean = build_mean("linear", 3)
    x = torch.rand(5, 3)
    expected = x @ mean.weights.squeeze() + mean.bias
    assert torch.allclose(mean(x), expected)
    assert not torch.allclose(mean(x), mean(x)[0].expand(5))


def test_linear_mean_starts_at_the_given_spread():
    torch.manual_seed(0)
    weights = build_mean("linear", 20_000, scale=0.1).weights
    # The standard error of a standard deviation is about sd / sqrt(2 n) = 0.0005.
    assert weights.std().item() == pytest.approx(0.1, abs=0.0025)
    assert build_mean("linear", 20_000).weights.std().item() == pytest.approx(1.0, abs=0.025)


def test_bias_is_drawn_unless_given():
    torch.manual_seed(0)
    drawn = torch.cat([build_mean("linear", 1, scale=2.0).bias.detach() for _ in range(2000)])
    assert drawn.std().item() == pytest.approx(2.0, abs=0.16)
    assert build_mean("linear", 4, bias=-0.7).bias.item() == pytest.approx(-0.7)
    assert build_mean("linear", 4, bias=0.0).bias.item() == 0


@pytest.mark.parametrize(("bias", "expected"), [(None, 0.0), (0.0, 0.0), (1.5, 1.5)])
def test_constant_mean(bias, expected):
    mean = build_mean("constant", 3, bias=bias)
    assert torch.allclose(mean(torch.rand(4, 3)), torch.full((4,), expected))
    assert sum(p.numel() for p in mean.parameters()) == 1


def test_unknown_mean_lists_the_known():
    assert MEANS == ("linear", "constant")
    with pytest.raises(SettingsError, match="one of linear, constant, but got 'zero'"):
        build_mean("zero", 3)
