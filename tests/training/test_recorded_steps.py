import copy

import numpy as np
import pytest
import torch

import sgpmil.models.sgpmil
from sgpmil.bags.dataset import BagDataset
from sgpmil.gp.noise import ZeroNoise
from sgpmil.gpu.resident import on_device
from sgpmil.models.registry import build_model
from sgpmil.training.batches import PackedBatches
from sgpmil.training.fit import fit
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.recorded_steps import RecordedSteps, filled_rows, recorded_steps
from sgpmil.training.settings import TrainingSettings
from sgpmil.training.steps import OptimiserSteps

SIZES = (40, 300, 17, 1, 500, 260, 33, 700, 256)
# Sizes of each step differ; most are filled up to 256, 384 or 512 rows, the last not at all.
GROUPS = [
    [0, 2],
    [1],
    [3, 6],
    [5],
    [4],
    [2, 0],
    [6, 3],
    [1],
    [7, 4, 5],
    [8],
]  # the last is not filled up at all


@pytest.fixture
def bags():
    rng = np.random.default_rng(0)
    features = [rng.normal(i % 2, 1, (n, 12)).astype(np.float32) for i, n in enumerate(SIZES)]
    return BagDataset.from_arrays(features, [i % 2 for i in range(len(SIZES))])


def trained(model, bags, settings, device):
    """Make a model and what trains it, on a device."""
    model = copy.deepcopy(model).to(device)
    model.train()
    return model, OptimiserSteps(model, build_optimiser(settings, model), settings, len(bags))


def plain_epoch(steps, bags, device, dtype):
    losses = []
    for batch in (PackedBatches(bags, GROUPS)[i] for i in range(len(GROUPS))):
        _, loss = steps.forward(batch.to(device, dtype=dtype))
        steps.backward(loss)
        steps.step()
        losses.append(loss.total.detach())
    return torch.stack(losses)


def small(name):
    sizes = {"hidden_dims": (16, 8), "gp_dim": 6, "num_inducing": 5, "num_samples": 3}
    if name != "sgpmil":
        sizes = {"query_dim": 16} if name == "dsmil" else {"hidden_dim": 16}
    if name in ("abmil", "clam-sb", "clam-mb", "dsmil"):
        sizes["dropout"] = 0.0
    torch.manual_seed(0)
    return build_model(name, in_dim=12, num_classes=2, **sizes)


RECORDABLE = ["sgpmil", "abmil", "clam-sb", "clam-mb", "dsmil", "mean-pool", "max-pool"]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("name", RECORDABLE)
def test_recorded_steps_are_the_plain_ones_in_double_precision(name, precision, bags, monkeypatch):
    monkeypatch.setattr(sgpmil.models.sgpmil, "FreshNoise", ZeroNoise)
    model = small(name)
    model.standardise.fit(torch.cat([bag.features for bag in bags]))
    settings = TrainingSettings(precision=precision, learning_rate=5e-3)
    _, steps = trained(model, bags, settings, "cuda")
    recorded = recorded_steps(steps, on_device(bags, torch.device("cuda")))
    found = [recorded.epoch(GROUPS, lambda: None).cpu().double() for _ in range(2)]
    double, plain = trained(
        model.double(), bags, TrainingSettings(precision="64", learning_rate=5e-3), "cpu"
    )
    expected = [plain_epoch(plain, bags, "cpu", torch.float64) for _ in range(2)]
    limit = 1e-3 if precision == "32" else 5e-2
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=limit, atol=limit)
    # They learn: the test would not notice weights that stay where they are otherwise.
    assert (expected[0] - expected[1]).abs().max() > 1e-2
    moved = torch.cat([p.flatten() for p in steps.model.parameters()]).cpu().double()
    wanted = torch.cat([p.flatten() for p in double.parameters()])
    begun = torch.cat([p.flatten() for p in model.parameters()])
    assert (moved - wanted).norm() < (0.1 if precision == "32" else 0.5) * (wanted - begun).norm()


@pytest.mark.gpu
def test_the_same_seed_gives_the_same_weights_bit_by_bit(bags):
    training = {"epochs": 3, "device": "gpu"}
    one, two = (fit(bags, training=training).state_dict() for _ in range(2))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.gpu
def test_an_epoch_that_fails_is_repeated_step_by_step(bags, monkeypatch):
    training = {"epochs": 2, "device": "gpu", "precision": "32"}
    take = RecordedSteps.epoch
    taken = []

    def failing(self, groups, on_step):
        taken.append(take(self, groups, on_step))
        return torch.full_like(taken[-1], torch.nan)

    monkeypatch.setattr(RecordedSteps, "epoch", failing)
    found = fit(bags, training=training).state_dict()
    assert len(taken) == 2
    monkeypatch.setattr("sgpmil.training.lightning_module.recorded_steps", lambda *_: None)
    expected = fit(bags, training=training).state_dict()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-6), name


def test_steps_are_not_recorded_without_a_gpu(bags):
    _, steps = trained(small("sgpmil"), bags, TrainingSettings(precision="32"), "cpu")
    assert recorded_steps(steps, bags) is None
    assert recorded_steps(steps, on_device(bags, torch.device("cpu"))) is None


def test_filling_up_is_monotonous_and_little():
    sizes = [filled_rows(n) for n in range(1, 20_000)]
    assert all(size >= n for n, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)
    assert all(size <= 1.16 * n for n, size in enumerate(sizes, start=1) if n > 2048)
    assert len(set(sizes)) < 40
