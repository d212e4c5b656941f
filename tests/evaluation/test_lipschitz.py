import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sgpmil.errors import CheckpointError
from sgpmil.evaluation.lipschitz import (
    LipschitzFactor,
    LipschitzPath,
    lipschitz_paths,
    spectral_norm,
    summarise_paths,
)
from sgpmil.models import build_model, list_models

DIM = 12
SMALL = {
    "sgpmil": {"hidden_dims": (10, 9, 8), "gp_dim": 5, "num_inducing": 4, "num_samples": 2},
    "agp": {"hidden_dims": (10, 8), "gp_dim": 5, "num_inducing": 4, "num_samples": 2},
    "abmil": {"hidden_dim": 8, "attention_dim": 4},
}


def model_of(name, seed=0, **settings):
    torch.manual_seed(seed)
    model = build_model(name, in_dim=DIM, num_classes=3, **SMALL.get(name, {}), **settings)
    # Standardised by scales of their own, without a shift of its kinks.
    model.standardise.scale.copy_(torch.rand(DIM) * 4 + 0.1)
    return model.double().eval()


def bounds_of(model, **options):
    return {path.name: path.bound for path in lipschitz_paths(model, **options)}


def power_iteration(weight, steps=3000):
    vector = torch.ones(weight.shape[1], dtype=torch.float64)
    for _ in range(steps):
        vector = weight.T @ (weight @ vector)
        vector = vector / vector.norm()
    return float((weight @ vector).norm())


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (1, 7), (7, 1), (20, 20)])
def test_spectral_norm_against_power_iteration(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert spectral_norm(weight) == pytest.approx(power_iteration(weight), rel=1e-6)


@given(
    arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(-9, 9))
)
def test_spectral_norm_against_numpy(weight):
    expected = np.linalg.norm(weight, 2)
    assert spectral_norm(torch.tensor(weight)) == pytest.approx(expected, abs=1e-12)


def sgpmil_functions(model):
    """What each path of SGPMIL computes of standardised features."""
    embed = model.mlp
    functions = {
        "classifier": lambda x: model.classifier(embed(x)),
        "attention": lambda x: model.projection(embed(x)).sigmoid(),
    }
    if model.settings.inputs == "standardised":
        G = model.settings.gp_dim
        inputs = model.gp_inputs  # of raw features; the standardisation of these is undone here

        def raw(x):
            return x * model.standardise.scale + model.standardise.mean

        functions["attention"] = lambda x: inputs(raw(x))[:, :G]
        functions["preserved components"] = lambda x: inputs(raw(x))[:, G:]
    if model.settings.mean == "linear":
        functions["attention mean"] = lambda x: model.gp.mean(functions["attention"](x))[:, None]
    return functions


def abmil_functions(model):
    def attention(x):
        h = model.mlp(x)
        hidden = model.value(h).tanh()
        if model.gate is not None:
            hidden = hidden * model.gate(h).sigmoid()
        return model.attention(hidden)

    return {"classifier": lambda x: model.classifier(model.mlp(x)), "attention": attention}


CASES = [
    ("sgpmil", {}, sgpmil_functions),
    ("sgpmil", {"preset": "paper"}, sgpmil_functions),
    ("sgpmil", {"preset": "points"}, sgpmil_functions),
    ("agp", {}, sgpmil_functions),
    ("abmil", {}, abmil_functions),
    ("abmil", {"gated": False}, abmil_functions),
]


@pytest.mark.parametrize(("name", "settings", "functions"), CASES)
@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_no_pair_of_inputs_exceeds_the_bound_of_its_path(name, settings, functions, seed):
    model = model_of(name, seed, **settings)
    with torch.no_grad():  # steep enough for the activations to bend
        for parameter in model.parameters():
            parameter.mul_(2.0)
        if getattr(model, "preserved", None) is not None:
            model.preserved.normal_()
    bounds = bounds_of(model)
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(4000, DIM, generator=generator, dtype=torch.float64)
    step = torch.randn(4000, DIM, generator=generator, dtype=torch.float64)
    y = x + step * 10 ** (-4 * torch.rand(4000, 1, generator=generator, dtype=torch.float64))
    found = functions(model)
    assert set(found) == set(bounds) - {"all layers"}
    for path, function in found.items():
        ratio = (function(x) - function(y)).norm(dim=1) / (x - y).norm(dim=1)
        assert float(ratio.max()) <= bounds[path] * (1 + 1e-9)
        assert float(ratio.max()) > 0.01 * bounds[path]


@pytest.mark.parametrize(("name", "settings", "functions"), [CASES[0], CASES[2], CASES[4]])
@torch.no_grad()
def test_no_pair_of_raw_inputs_exceeds_the_bound_of_its_path(name, settings, functions):
    model = model_of(name, **settings)
    model.standardise.limit.fill_(1.5)
    bounds = bounds_of(model, raw_features=True)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4000, DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    y = x + 0.01 * y
    for path, function in functions(model).items():
        values = [function(model.prepare(z)) for z in (x, y)]
        ratio = (values[0] - values[1]).norm(dim=1) / (x - y).norm(dim=1)
        assert float(ratio.max()) <= bounds[path] * (1 + 1e-9)


@torch.no_grad()
def test_the_bound_is_exact_for_layers_that_agree_on_a_direction():
    """Every layer stretches the first axis most, by 2, 3 and 5, and keeps it positive."""
    model = build_model(
        "sgpmil", in_dim=4, num_classes=2, preset="points", hidden_dims=(4, 4), gp_dim=2
    )
    layers = [model.mlp[0], model.mlp[2]]
    for layer, top in zip(layers, (2.0, 3.0), strict=True):
        layer.weight.copy_(torch.diag(torch.tensor([top, 1.0, 0.5, 0.1])))
        layer.bias.zero_()
    model.classifier.weight.copy_(torch.tensor([[5.0, 0, 0, 0], [0, 1.0, 0, 0]]))
    model.projection.weight.copy_(torch.tensor([[0.0, 4.0, 0, 0], [7.0, 0, 0, 0]]))
    model.projection.bias.zero_()
    model.gp.mean.weights.copy_(torch.tensor([[3.0], [4.0]]))
    bounds = bounds_of(model)
    assert bounds["classifier"] == pytest.approx(2 * 3 * 5)
    assert bounds["attention"] == pytest.approx(2 * 3 * 7 / 4)
    assert bounds["attention mean"] == pytest.approx(2 * 3 * 7 / 4 * 5)
    assert bounds["all layers"] == pytest.approx(2 * 3 * 7 / 4 * 5 * 0.5 * 5)  # softmax
    x, y = torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([[3.0, 0, 0, 0]])
    change = model.classifier(model.mlp(y)) - model.classifier(model.mlp(x))
    assert float(change.norm()) == pytest.approx(bounds["classifier"] * 2)
    # The sigmoid is steepest at 0, where the bound is that of its slope.
    near = model.projection(model.mlp(torch.tensor([[1e-4, 0, 0, 0]]))).sigmoid()
    assert float((near[0, 1] - 0.5) / 1e-4) == pytest.approx(bounds["attention"], rel=1e-3)


@pytest.mark.parametrize(("open_part", "slope"), [("value", 6.0), ("gate", 6.0 / 4)])
@torch.no_grad()
def test_the_gated_bound_is_exact_where_one_part_is_open(open_part, slope):
    """With the other part held at 1, only the tanh or only the sigmoid is left."""
    model = build_model("abmil", in_dim=1, num_classes=2, hidden_dim=1, attention_dim=1).double()
    for layer, weight in ((model.mlp[0], 2.0), (model.attention, 5.0)):
        layer.weight.fill_(weight)
        layer.bias.zero_()
    for name in ("value", "gate"):
        layer = getattr(model, name)
        layer.weight.fill_(6.0 if name == open_part else 0.0)
        layer.bias.fill_(0.0 if name == open_part else 40.0)
    bound = bounds_of(model)["attention"]
    assert bound == pytest.approx(2 * slope * 5)
    x = torch.tensor([[0.0], [1e-5]], dtype=torch.float64)
    low, high = abmil_functions(model)["attention"](x)
    assert float((high - low) / 1e-5) == pytest.approx(bound, rel=1e-3)


@torch.no_grad()
def test_raw_features_count_the_scales():
    model = model_of("abmil")
    weight, scale = model.mlp[0].weight, model.standardise.scale
    first = np.linalg.norm(weight.numpy() / scale.numpy()[None], 2)
    classifier = np.linalg.norm(model.classifier.weight.numpy(), 2)
    assert bounds_of(model, raw_features=True)["classifier"] == pytest.approx(first * classifier)
    plain = model_of("abmil")
    plain.standardise.scale.fill_(1.0)
    assert bounds_of(plain, raw_features=True) == bounds_of(plain)


@torch.no_grad()
def test_factors_multiply_to_the_bound_and_are_named():
    paths = {path.name: path for path in lipschitz_paths(model_of("sgpmil", preset="paper"))}
    everything = paths["all layers"].factors
    assert [factor.name for factor in everything] == [
        *("layer 1", "layer 2", "layer 3", "attention projection", "sigmoid"),
        *("linear mean", "sigmoid", "classifier"),
    ]
    assert [f.value for f in everything if f.name == "sigmoid"] == [0.25, 0.25]
    assert paths["all layers"].bound == pytest.approx(np.prod([f.value for f in everything]))
    agp = {path.name: path for path in lipschitz_paths(model_of("agp"))}
    assert "attention mean" not in agp
    assert [f.value for f in agp["all layers"].factors if f.name == "softmax"] == [0.5]


def test_the_softmax_constant_is_attained():
    p = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert spectral_norm(torch.diag(p) - torch.outer(p, p)) == pytest.approx(0.5)
    for seed in range(20):
        p = torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(5)))
        assert spectral_norm(torch.diag(p) - torch.outer(p, p)) <= 0.5


@pytest.mark.parametrize("name", sorted(set(list_models()) - set(SMALL)))
def test_other_models_are_refused_in_a_sentence(name):
    model = build_model(name, in_dim=DIM, num_classes=2)
    with pytest.raises(CheckpointError, match=f"sgpmil, agp, abmil.*but got '{name}'"):
        lipschitz_paths(model)


def test_an_encoder_in_front_is_refused():
    model = build_model("abmil", in_dim=784, num_classes=2, encoder="digit-cnn")
    with pytest.raises(CheckpointError, match="'digit-cnn'"):
        lipschitz_paths(model)


def path_of(value, name="classifier"):
    return LipschitzPath(name, (LipschitzFactor("layer 1", value), LipschitzFactor("x", 2.0)))


def test_summary_over_folds():
    (found,) = summarise_paths([[path_of(1.0)], [path_of(2.0)], [path_of(4.5)]])
    assert found.name == "classifier"
    assert found.values == (2.0, 4.0, 9.0)
    assert found.mean == pytest.approx(5.0)
    assert found.sd == pytest.approx(statistics.stdev([2.0, 4.0, 9.0]))
    (alone,) = summarise_paths([[path_of(1.0)]])
    assert math.isnan(alone.sd)
    for folds in ([], [[path_of(1.0)], [path_of(1.0, "attention")]]):
        with pytest.raises(CheckpointError, match="models of one run"):
            summarise_paths(folds)
