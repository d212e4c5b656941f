import numpy as np
import pytest
import torch

from sgpmil.bags import Bag, BagBatch, BagDataset
from sgpmil.errors import CheckpointError
from sgpmil.evaluation.lipschitz import lipschitz_paths
from sgpmil.evaluation.lipschitz_gradients import (
    jacobian_norms,
    largest_gradients,
    slide_gradient,
)
from sgpmil.models import build_model
from tests.evaluation.test_lipschitz import CASES, DIM, model_of


def test_the_norm_of_a_linear_map_is_its_largest_singular_value():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    norms, directions = jacobian_norms(lambda x: x @ weight.T, torch.zeros(3, 7).double())
    assert norms.tolist() == pytest.approx([float(np.linalg.norm(weight.numpy(), 2))] * 3)
    assert (directions @ weight.T).norm(dim=1).tolist() == pytest.approx(norms.tolist())


def test_the_norm_at_a_point_is_that_of_finite_differences():
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.tensor([[0.2, -0.4, 1.0]], dtype=torch.float64)

    def function(z):
        return (z @ weight.T).tanh()

    columns = [(function(x + h) - function(x - h)) / 2e-6 for h in 1e-6 * torch.eye(3).double()]
    jacobian = torch.cat(columns).T.numpy()
    assert float(jacobian_norms(function, x)[0]) == pytest.approx(np.linalg.norm(jacobian, 2))


@pytest.mark.parametrize(("name", "settings"), [case[:2] for case in CASES])
def test_no_gradient_that_is_found_exceeds_the_bound(name, settings):
    model = model_of(name, 1, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    bounds = {path.name: path.bound for path in lipschitz_paths(model)}
    found = largest_gradients(model, num_starts=16, num_rounds=4)
    assert set(found) == set(bounds) - {"all layers"}
    for path, value in found.items():
        assert value <= bounds[path] * (1 + 1e-9)


def test_the_ascent_reaches_the_bound_of_a_linear_path():
    model = model_of("sgpmil")
    with torch.no_grad():
        model.preserved.normal_()
    bounds = {path.name: path.bound for path in lipschitz_paths(model)}
    found = largest_gradients(model, num_starts=4, num_rounds=1)
    assert found["preserved components"] == pytest.approx(bounds["preserved components"])


def test_more_ascent_finds_no_less():
    model = model_of("abmil", 2)
    short, long = (largest_gradients(model, num_starts=8, num_rounds=n) for n in (0, 8))
    assert all(long[path] >= short[path] for path in short)
    assert any(long[path] > 1.05 * short[path] for path in short)


def test_the_slides_gradient_is_that_of_finite_differences():
    model = build_model("mean-pool", in_dim=3, num_classes=2, hidden_dim=4).eval()
    model.standardise.scale.copy_(torch.tensor([0.5, 1.0, 2.0]))
    features = torch.tensor([[0.3, -0.2, 0.9], [1.0, 0.4, -0.5]])
    bags = BagDataset.from_arrays([features.numpy()], ["a"], class_names=("a", "b"))

    def logits(values):
        return model(BagBatch.pack([Bag(values, "s", label=0)])).logits[0, 0]

    largest = 0.0
    for row in range(2):
        columns = []
        for k in range(3):
            step = torch.zeros(2, 3)
            step[row, k] = 1e-2 * model.standardise.scale[k]
            with torch.no_grad():
                columns.append((logits(features + step) - logits(features - step)) / 2e-2)
        largest = max(largest, np.linalg.norm(torch.stack(columns, 1).numpy(), 2))
    assert slide_gradient(model, bags) == pytest.approx(largest, rel=1e-3)


def test_other_models_are_refused():
    with pytest.raises(CheckpointError, match="paths are known"):
        largest_gradients(build_model("mean-pool", in_dim=DIM, num_classes=2))
