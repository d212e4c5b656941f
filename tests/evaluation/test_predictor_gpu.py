"""What a GPU predicts, against the CPU in double precision."""

import numpy as np
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.evaluation import predictor
from sgpmil.evaluation.predictor import predict
from sgpmil.gpu.resident import on_device
from sgpmil.models.registry import build_model

pytestmark = pytest.mark.gpu
MODELS = ["sgpmil", "abmil", "clam-mb", "dsmil", "transmil", "dgrmil", "mixmil", "bayesmil"]


@pytest.fixture
def bags(rng):
    sizes = (1, 40, 700, 3, 2000)
    return BagDataset.from_arrays([rng.normal(size=(n, 16)) for n in sizes], [0, 1, 0, 1, 0])


@pytest.mark.parametrize(("precision", "limit"), [("32", 2e-4), ("bf16", 5e-2)])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("resident", [True, False])
def test_predictions_are_those_of_the_cpu(name, precision, limit, resident, bags, monkeypatch):
    monkeypatch.setattr(predictor, "MAX_INSTANCES", {"cpu": 10**6, "cuda": 1000})

    def drawn_alike(seed, shape, dtype, device):  # torch's draws differ with the precision
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator).to(device, dtype)

    for function in ("_draws", "_cached_draws"):
        monkeypatch.setattr(f"sgpmil.gp.noise.{function}", drawn_alike)
    torch.manual_seed(0)
    model = build_model(name, in_dim=16, num_classes=2)
    model.standardise.fit(torch.cat([bag.features for bag in bags]))
    device = torch.device("cuda")
    found = predict(
        model, on_device(bags, device) if resident else bags, device=device, precision=precision
    )
    expected = predict(model.cpu().double(), bags)
    for ours, theirs in zip(found.predictions, expected.predictions, strict=True):
        assert ours.slide_id == theirs.slide_id
        np.testing.assert_allclose(ours.probs, theirs.probs, atol=limit)
        np.testing.assert_allclose(ours.std, theirs.std, atol=limit)
        scale = np.abs(theirs.instances.attention_mean).max()
        np.testing.assert_allclose(
            ours.instances.attention_mean, theirs.instances.attention_mean, atol=limit * scale
        )
