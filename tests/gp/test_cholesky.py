import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.errors import TrainingError
from sgpmil.gp.cholesky import jittered_cholesky


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.sampled_from([1e-1, 1e-3, 1e-6]), st.integers(0, 99))
def test_factor_gives_the_jittered_matrix_back(size, jitter, seed):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double()
    covariance = root @ root.T
    factor = jittered_cholesky(covariance, jitter)
    expected = covariance + jitter * torch.eye(size).double()
    assert torch.allclose(factor @ factor.T, expected, atol=1e-12, rtol=1e-12)
    assert torch.equal(factor, factor.tril())


def test_float32_is_factorised_in_float64():
    covariance = torch.ones(3, 3)  # float32 could not tell 1 + 1e-8 from 1
    factor = jittered_cholesky(covariance, 1e-8)
    assert factor.dtype == torch.float64
    expected = torch.ones(3, 3).double() + 1e-8 * torch.eye(3).double()
    assert torch.allclose(factor @ factor.T, expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize(("smallest", "added"), [(0.5e-4, 1e-4), (-0.5e-3, 1e-3), (-0.05, 0.1)])
def test_jitter_rises_tenfold_until_it_is_enough(smallest, added):
    covariance = torch.diag(torch.tensor([1.0, 2.0, smallest])).double()
    factor = jittered_cholesky(covariance, 1e-4)
    assert torch.allclose(
        factor.diagonal().square(), covariance.diagonal() + added, atol=1e-12, rtol=0
    )


def test_jitter_rises_no_more_than_thousandfold():
    with pytest.raises(TrainingError, match=r"even with 0\.1.*Lower the learning rate"):
        jittered_cholesky(torch.diag(torch.tensor([1.0, -0.11])), 1e-4)


@pytest.mark.parametrize("position", [(0, 0), (1, 0), (2, 2)])
def test_nan_is_a_training_error(position):
    covariance = torch.eye(3)
    covariance[position] = torch.nan
    with pytest.raises(TrainingError, match="is NaN or has run away"):
        jittered_cholesky(covariance, 1e-4)


def test_gradient_is_that_of_the_factorisation():
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double()
    root.requires_grad_()
    assert torch.autograd.gradcheck(lambda r: jittered_cholesky(r @ r.T, 1e-2), root)
