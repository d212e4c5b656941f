import pytest
import torch

from sgpmil.models.process_use import ProcessUse, process_use

from .small import IN_DIM, small_model


@pytest.fixture
def patches():
    return torch.randn(40, IN_DIM, generator=torch.Generator().manual_seed(1)).double()


def trained(mean, factor):
    """A model whose q(v) has this mean and this factor times the identity."""
    model = small_model("sgpmil/points", dtype=torch.float64)
    distribution = model.gp.variational
    with torch.no_grad():
        distribution.variational_mean.fill_(mean)
        size = len(distribution.variational_mean)
        distribution.chol_variational_covar.copy_(factor * torch.eye(size).double())
    return model


def test_a_posterior_that_is_the_prior_is_idle(patches):
    use = process_use([trained(0.0, 1.0).posterior(patches)])
    assert use.variance_ratio == pytest.approx(1, abs=1e-6)
    assert (use.share, use.shift) == (0, 0)
    assert use.num_patches == 40
    assert use.is_idle


def test_it_is_measured_as_defined(patches):
    model = trained(0.7, 0.5)
    with torch.no_grad():
        mean, variance = model.attention_posterior(patches)
        inputs = model.gp_inputs(patches)
        prior_mean = model.gp.mean(inputs)
        prior_variance = model.gp.kernel(inputs).to_dense().diag()
    part = (mean - prior_mean).std()
    # Some patches at a time, or all at once.
    for posteriors in (
        [model.posterior(patches)],
        [model.posterior(rows) for rows in patches.split(13)],
    ):
        use = process_use(posteriors)
        assert use.share == pytest.approx(float(part / mean.std()), rel=1e-4)
        assert use.shift == pytest.approx(float(part / prior_variance.mean().sqrt()), rel=1e-3)
        ratio = (variance / prior_variance).mean()
        assert use.variance_ratio == pytest.approx(float(ratio), rel=1e-3)


def test_a_process_that_learned_is_not_idle():
    # Values as of the default and of the preset `points` on nuclei of the colon.
    assert not ProcessUse(1.0, 0.36, 0.69, 3000).is_idle
    assert not ProcessUse(0.3, 0.01, 0.6, 3000).is_idle
    assert not ProcessUse(0.3, 0.4, 0.97, 3000).is_idle
    assert ProcessUse(0.001, 0.0006, 0.975, 3000).is_idle
