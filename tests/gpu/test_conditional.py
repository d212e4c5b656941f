import pytest
import torch

from sgpmil.gpu.conditional import MIN_VARIANCE, carried_draw

M, T, S = 4, 6, 3


def arguments(variance):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).double()

    return (
        (0.3 * normal(M, T)).requires_grad_(),
        normal(M, M).tril().requires_grad_(),
        normal(S, M).requires_grad_(),
        torch.full((T,), variance).double().requires_grad_(),
        normal(S, T),
    )


def written_out(covariance, inverse, values, variance, noise):
    B = inverse @ covariance
    left = (variance - B.square().sum(0)).clamp(min=MIN_VARIANCE)
    return values @ B + left.sqrt() * noise


@pytest.mark.parametrize("variance", [5.0, 0.5, -1.0], ids=["all-left", "some-left", "none-left"])
def test_value_and_gradients_are_those_of_the_formula(variance):
    found = []
    weights = torch.randn(S, T, generator=torch.Generator().manual_seed(1)).double()
    for function in (carried_draw, written_out):
        given = arguments(variance)
        drawn = function(*given)
        (weights * drawn).sum().backward()
        found.append([drawn, *[x.grad for x in given[:4]]])
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_some_variances_are_at_their_floor_in_that_test():
    covariance, inverse, _, variance, _ = arguments(0.5)
    left = variance - (inverse @ covariance).square().sum(0)
    assert 0 < (left > MIN_VARIANCE).sum() < T
