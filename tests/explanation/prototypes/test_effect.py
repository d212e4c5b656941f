import numpy as np
import pytest
import torch

from sgpmil.explanation.prototypes import attention_parts
from sgpmil.explanation.prototypes.effect import prototype_weights
from tests.explanation.prototypes.explained import labelled_bags, spread_model


@pytest.mark.parametrize("kernel", ["rbf", "matern32", "linear"])
@pytest.mark.parametrize("mean", ["linear", "constant"])
@torch.no_grad()
def test_the_parts_sum_to_the_posterior_mean(kernel, mean):
    model = spread_model(kernel=kernel, mean=mean)
    features = labelled_bags()[0].features
    parts = attention_parts(model.gp, model.gp_inputs(model.embed(features)))
    expected, _ = model.attention_posterior(features)
    assert float(parts.contributions.abs().max()) > 0.01
    torch.testing.assert_close(parts.total, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_weights_solve_the_unwhitened_system():
    model = spread_model()
    gp, z = model.gp, model.gp.inducing_points.numpy()
    scaled, constant = gp.kernel.kernels
    length = float(scaled.base_kernel.lengthscale)
    squared = ((z[:, None] - z) ** 2).sum(-1)
    K = float(scaled.outputscale) * np.exp(-squared / (2 * length**2)) + float(constant.constant)
    K += gp.jitter * np.eye(len(z))
    prior = gp.mean(gp.inducing_points).numpy()
    inducing_mean = prior + np.linalg.cholesky(K) @ gp.whitened_mean.numpy()
    expected = np.linalg.solve(K, inducing_mean - prior)
    np.testing.assert_allclose(prototype_weights(gp).numpy(), expected, rtol=1e-8)


@torch.no_grad()
def test_coinciding_points_still_sum_exactly():
    model = spread_model()
    model.gp.inducing_points[1:] = model.gp.inducing_points[0]
    features = labelled_bags()[0].features
    parts = attention_parts(model.gp, model.gp_inputs(model.embed(features)))
    expected, _ = model.attention_posterior(features)
    # Weights of opposite sign that cancel: the sum holds, the terms mean nothing.
    assert float(parts.contributions.abs().max()) > 10 * float(expected.abs().max())
    torch.testing.assert_close(parts.total, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_what_is_known_already_is_not_computed_again():
    model = spread_model()
    inputs = model.gp_inputs(model.embed(labelled_bags()[0].features))
    covariance = torch.full((9, len(inputs)), 2.0, dtype=torch.float64)
    weights = torch.arange(9, dtype=torch.float64)
    parts = attention_parts(model.gp, inputs, covariance, weights)
    torch.testing.assert_close(parts.contributions, 2 * weights[:, None].expand(9, len(inputs)))
