import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from sgpmil.bags.bag import Bag
from sgpmil.errors import ExplanationError
from sgpmil.explanation.prototypes import (
    attention_parts,
    explain_prototypes,
    mean_inputs,
    similarity,
)
from sgpmil.explanation.prototypes.similarity import prototype_weights
from tests.explanation.prototypes.explained import labelled_bags, spread_model
from tests.models.small import random_bags, small_model


def inputs_and_points(model, bags):
    with torch.no_grad():
        inputs = torch.cat([model.gp_inputs(bag.features) for bag in bags])
    return inputs.double().numpy(), model.gp.inducing_points.detach().double().numpy()


def assigned(explanation):
    slides = explanation.slides.values()
    return (
        np.concatenate([slide.assigned for slide in slides]),
        np.concatenate([slide.similarity for slide in slides]),
    )


def test_the_cosine_is_scipys():
    model, bags = spread_model(), labelled_bags()
    inputs, points = inputs_and_points(model, bags)
    expected = 1 - cdist(inputs, points, "cosine")
    numbers, values = assigned(explain_prototypes(model, bags, measure="cosine"))
    assert len(np.unique(numbers)) > 3
    np.testing.assert_array_equal(numbers, expected.argmax(1))
    np.testing.assert_allclose(values, expected.max(1), atol=1e-6)


def test_the_centred_cosine_is_scipys_about_the_mean_of_the_patches():
    model, bags = spread_model(), labelled_bags()
    inputs, points = inputs_and_points(model, bags)
    expected = 1 - cdist(inputs - inputs.mean(0), points - inputs.mean(0), "cosine")
    numbers, values = assigned(explain_prototypes(model, bags, measure="centred"))
    np.testing.assert_array_equal(numbers, expected.argmax(1))
    np.testing.assert_allclose(values, expected.max(1), atol=1e-6)
    plain, _ = assigned(explain_prototypes(model, bags, measure="cosine"))
    assert (plain != numbers).any()


def test_a_centre_from_other_bags_is_taken_as_given():
    model, bags, train = spread_model(), labelled_bags(), random_bags((50,), seed=7)
    centre = mean_inputs(model, train)
    train_inputs, points = inputs_and_points(
        model, [Bag(bag.features.double(), bag.slide_id) for bag in train]
    )
    np.testing.assert_allclose(centre, train_inputs.mean(0), atol=1e-6)
    inputs, _ = inputs_and_points(model, bags)
    expected = 1 - cdist(inputs - centre, points - centre, "cosine")
    numbers, _ = assigned(explain_prototypes(model, iter(bags), measure="centred", centre=centre))
    np.testing.assert_array_equal(numbers, expected.argmax(1))


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern52"])
def test_the_kernel_takes_the_nearest_point(kernel):
    model, bags = spread_model(kernel=kernel), labelled_bags()
    inputs, points = inputs_and_points(model, bags)
    distances = cdist(inputs, points)
    numbers, values = assigned(explain_prototypes(model, bags, measure="kernel"))
    np.testing.assert_array_equal(numbers, distances.argmin(1))
    # The nearer, the more alike, and 1 only at the point itself.
    order = np.argsort(distances.min(1))
    assert (np.diff(values[order]) <= 1e-6).all()
    assert values.max() < 1


@torch.no_grad()
def test_the_rbf_correlation_is_the_formula():
    model, bags = spread_model(), labelled_bags()
    inputs, points = inputs_and_points(model, bags)
    scaled, constant = model.gp.kernel.kernels
    s, c = float(scaled.outputscale), float(constant.constant)
    length = float(scaled.base_kernel.lengthscale)
    expected = s * np.exp(-(cdist(inputs, points) ** 2) / (2 * length**2)) + c
    _, values = assigned(explain_prototypes(model, bags, measure="kernel"))
    np.testing.assert_allclose(values, expected.max(1) / (s + c), rtol=1e-6)


@torch.no_grad()
def test_the_linear_kernel_is_compared_by_correlation_not_by_size():
    model, bags = spread_model(kernel="linear"), labelled_bags()
    model.gp.inducing_points[0] = 50.0  # would win every inner product
    inputs, points = inputs_and_points(model, bags)
    linear, constant = model.gp.kernel.kernels
    v, c = float(linear.variance), float(constant.constant)
    covariance = v * inputs @ points.T + c
    own = (v * (inputs**2).sum(1) + c)[:, None] * (v * (points**2).sum(1) + c)
    numbers, values = assigned(explain_prototypes(model, bags, measure="kernel"))
    np.testing.assert_array_equal(numbers, (covariance / np.sqrt(own)).argmax(1))
    np.testing.assert_allclose(values, (covariance / np.sqrt(own)).max(1), rtol=1e-5)
    assert (covariance.argmax(1) == 0).all()
    assert (numbers != 0).any()


def test_a_short_lengthscale_in_single_precision_still_finds_the_nearest():
    # The kernel is its constant nearly everywhere, in float64 too.
    model = spread_model(dtype=torch.float32)
    bags = labelled_bags(dtype=torch.float32)
    model.gp.kernel.kernels[0].base_kernel.lengthscale = 0.01
    inputs, points = inputs_and_points(model, bags)
    numbers, _ = assigned(explain_prototypes(model, bags, measure="kernel"))
    np.testing.assert_array_equal(numbers, cdist(inputs, points).argmin(1))


def test_pieces_make_no_difference(monkeypatch):
    model, bags = spread_model(), labelled_bags()
    whole = explain_prototypes(model, bags, measure="kernel")
    monkeypatch.setattr(similarity, "CHUNK", 3)
    pieces = explain_prototypes(model, bags, measure="kernel")
    for one, other in zip(assigned(whole), assigned(pieces), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(whole.prototypes, pieces.prototypes, strict=True):
        assert (one.index, one.num_patches, one.examples) == (
            other.index,
            other.num_patches,
            other.examples,
        )
        assert one.logit_mean == pytest.approx(other.logit_mean, rel=1e-12, nan_ok=True)


def test_half_precision_embeddings_are_read():
    model, bags = spread_model(dtype=torch.float32), labelled_bags(dtype=torch.float32)
    halves = [Bag(bag.features.half(), bag.slide_id) for bag in bags]
    singles = [Bag(bag.features.float(), bag.slide_id) for bag in halves]
    for one, other in zip(
        assigned(explain_prototypes(model, halves)),
        assigned(explain_prototypes(model, singles)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["abmil", "mixmil", "mean-pool"])
def test_models_without_inducing_points_are_refused(name):
    with pytest.raises(ExplanationError, match=f"but got '{name}'.*attention maps"):
        explain_prototypes(small_model(name), random_bags())


def test_agp_has_prototypes():
    numbers, _ = assigned(explain_prototypes(small_model("agp"), random_bags()))
    assert set(numbers) <= set(range(5))


def test_other_embeddings_are_refused():
    with pytest.raises(ExplanationError, match=r"Expected 6 features a patch.*'odd' has 4"):
        explain_prototypes(spread_model(), [Bag(torch.ones(3, 4), "odd")])


def test_an_unknown_measure_is_refused():
    with pytest.raises(ExplanationError, match=r"kernel, cosine or centred, but got 'euclid'"):
        similarity.check_measure("euclid")


def test_the_mean_of_no_bags_is_refused():
    with pytest.raises(ExplanationError, match="at least one slide"):
        mean_inputs(spread_model(), [])


@pytest.mark.parametrize("kernel", ["rbf", "matern32", "linear"])
@pytest.mark.parametrize("mean", ["linear", "constant"])
@torch.no_grad()
def test_the_parts_sum_to_the_posterior_mean(kernel, mean):
    model = spread_model(kernel=kernel, mean=mean)
    features = labelled_bags()[0].features
    parts = attention_parts(model.gp, model.gp_inputs(features))
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
    parts = attention_parts(model.gp, model.gp_inputs(features))
    expected, _ = model.attention_posterior(features)
    # Weights of opposite sign that cancel: the sum holds, the terms mean nothing.
    assert float(parts.contributions.abs().max()) > 10 * float(expected.abs().max())
    torch.testing.assert_close(parts.total, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_what_is_known_already_is_not_computed_again():
    model = spread_model()
    inputs = model.gp_inputs(labelled_bags()[0].features)
    covariance = torch.full((9, len(inputs)), 2.0, dtype=torch.float64)
    weights = torch.arange(9, dtype=torch.float64)
    parts = attention_parts(model.gp, inputs, covariance, weights)
    torch.testing.assert_close(parts.contributions, 2 * weights[:, None].expand(9, len(inputs)))
