import pytest
import torch

from sgpmil.errors import TrainingError
from sgpmil.gp.cholesky import _without_waiting, jittered_cholesky
from sgpmil.gp.whitening import inverse_factor


def root(size, seed=0):
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double()


def test_it_is_the_inverse_of_the_factor():
    covariance = root(5) @ root(5).T
    expected = torch.linalg.inv(jittered_cholesky(covariance, 1e-3))
    assert torch.allclose(inverse_factor(covariance, 1e-3), expected, atol=1e-10)


def test_gradient_is_that_of_factor_and_inverse():
    r = root(4).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: inverse_factor(r @ r.T, 1e-2), r)
    weights = root(4, seed=1)
    found = []
    for inverse in (
        lambda K: inverse_factor(K, 1e-2),
        lambda K: torch.linalg.inv(torch.linalg.cholesky(K + 1e-2 * torch.eye(4).double())),
    ):
        r = root(4).requires_grad_()
        (weights * inverse(r @ r.T)).sum().backward()
        found.append(r.grad)
    assert torch.allclose(*found, atol=1e-10)


def test_single_precision_is_inverted_in_double():
    assert inverse_factor(torch.ones(3, 3), 1e-8).dtype == torch.float64
    r = torch.ones(3, 3, requires_grad=True)
    inverse_factor(r, 1e-2).sum().backward()
    assert r.grad.dtype == torch.float32


def test_nan_is_a_training_error():
    with pytest.raises(TrainingError, match="is NaN or has run away"):
        inverse_factor(torch.full((2, 2), torch.nan), 1e-4)


@pytest.mark.parametrize("smallest", [0.5e-4, -0.5e-3, -0.05])
def test_all_jitters_at_once_give_what_one_after_another_do(smallest):
    covariance = torch.diag(torch.tensor([1.0, 2.0, smallest])).double()
    found = _without_waiting(covariance, torch.eye(3).double(), 1e-4)
    assert torch.allclose(found, jittered_cholesky(covariance, 1e-4), atol=1e-14)


@pytest.mark.parametrize("worst", [-0.11, torch.nan])
def test_none_that_will_do_is_nan(worst):
    covariance = torch.diag(torch.tensor([1.0, worst])).double()
    assert _without_waiting(covariance, torch.eye(2).double(), 1e-4).isnan().all()
