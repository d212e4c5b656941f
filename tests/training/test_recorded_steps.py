import copy
import gc
import weakref

import numpy as np
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.gp.noise import ZeroNoise
from sgpmil.gpu.resident import on_device
from sgpmil.models.registry import build_model
from sgpmil.training.batches import PackedBatches
from sgpmil.training.engines import OptimiserSteps, PlainEngine, ReplayEngine
from sgpmil.training.fit import fit
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.recorded_steps import HalfWeights, RecordedSteps, filled_rows, recorded_steps
from sgpmil.training.settings import TrainingSettings

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
    sizes["feature_dropout"] = 0.0  # a GPU would leave out other features
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
    monkeypatch.setattr("sgpmil.models.sgpmil.FreshNoise", ZeroNoise)
    model = small(name)
    model.standardise.fit(torch.cat([bag.features for bag in bags]))
    settings = TrainingSettings(precision=precision, learning_rate=5e-3)
    _, steps = trained(model, bags, settings, "cuda")
    recorded = recorded_steps(steps, on_device(bags, torch.device("cuda")))
    found = [recorded.epoch(PackedBatches(bags, GROUPS)).cpu().double() for _ in range(2)]
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
def test_recordings_are_freed_without_a_collection_of_garbage(bags):
    _, steps = trained(small("sgpmil"), bags, TrainingSettings(precision="32"), "cuda")
    recorded = recorded_steps(steps, on_device(bags, torch.device("cuda")))
    recorded.epoch(PackedBatches(bags, GROUPS))
    engine, alive = ReplayEngine(recorded, PlainEngine(steps)), weakref.ref(recorded)
    held = torch.cuda.memory_reserved()
    gc.disable()
    try:
        del recorded
        engine.forget()
        assert alive() is None
        assert torch.cuda.memory_reserved() < held
    finally:
        gc.enable()


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

    def failing(self, batches):
        taken.append(take(self, batches))
        return torch.full_like(taken[-1], torch.nan)

    monkeypatch.setattr(RecordedSteps, "epoch", failing)
    found = fit(bags, training=training).state_dict()
    assert len(taken) == 2
    monkeypatch.setattr("sgpmil.training.loop.recorded_steps", lambda *_: None)
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


def sgpmil():
    torch.manual_seed(0)
    return build_model(
        "sgpmil", in_dim=6, num_classes=2, hidden_dims=(5, 4), gp_dim=3, num_inducing=2
    )


def test_layers_compute_with_copies_and_the_model_keeps_its_parameters():
    model = sgpmil()
    names = dict(model.named_parameters())
    halves = HalfWeights(model)
    x = torch.randn(7, 6).bfloat16()
    with halves.in_use():
        found = model.projection(model.mlp(x))
        found.float().sum().backward()
    assert found.dtype == torch.bfloat16
    assert {n: id(p) for n, p in model.named_parameters()} == {n: id(p) for n, p in names.items()}
    with torch.autocast("cpu", torch.bfloat16):
        expected = model.projection(model.mlp(x.float()))
        expected.float().sum().backward()
    assert torch.equal(found, expected)
    for parameter, half in halves.by_parameter.items():
        assert half.grad.dtype == torch.bfloat16
        assert torch.equal(half.grad.float(), parameter.grad)


def test_the_embedding_and_the_projection_have_copies_and_nothing_else_has():
    model = sgpmil()
    copied = {n for n, p in model.named_parameters() if p in HalfWeights(model).by_parameter}
    assert copied == {n for n, _ in model.named_parameters() if n.startswith(("mlp", "projection"))}
    assert not HalfWeights(None).by_parameter


def test_copies_follow_the_parameters():
    model = sgpmil()
    halves = HalfWeights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    halves.refresh()
    for parameter, half in halves.by_parameter.items():
        assert torch.equal(half, parameter.bfloat16())


def test_an_error_leaves_the_model_as_it_was():
    model = sgpmil()
    before = [id(p) for p in model.parameters()]
    try:
        with HalfWeights(model).in_use():
            raise RuntimeError
    except RuntimeError:
        pass
    assert [id(p) for p in model.parameters()] == before
