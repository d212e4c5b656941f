import copy
import gc
import weakref
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import sgpmil.training.recorded_steps as module
from sgpmil.bags.dataset import BagDataset
from sgpmil.gp.noise import ZeroNoise
from sgpmil.gpu.adam import AdamStep
from sgpmil.gpu.recording import Recorder, Recording
from sgpmil.gpu.resident import on_device
from sgpmil.models.embedding import DigitCNN
from sgpmil.models.registry import build_model
from sgpmil.training.batches import PackedBatches
from sgpmil.training.engines import OptimiserSteps, PlainEngine, ReplayEngine
from sgpmil.training.fit import fit
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.recorded_steps import (
    HalfWeights,
    RecordedSteps,
    can_record,
    filled_rows,
    recorded_steps,
)
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


ONE_SIZE = 9
ONE_SIZE_GROUPS = [[0, 3, 5, 2], [6, 1, 4, 7], [9, 8]]
OF_ONE_SIZE = {
    "transmil": {"hidden_dim": 16, "num_heads": 2, "dropout": 0.0},
    "dgrmil": {
        "hidden_dim": 16,
        "num_heads": 2,
        "dropout": 0.0,
        "instance_dropout": 0.0,
        "warmup_epochs": 2,
    },
    "bayesmil": {"hidden_dim": 16, "attention_dim": 8, "dropout": 0.0, "spatial": False},
    "kernel-attention": {"hidden_dim": 16, "query_dim": 8, "attention_dim": 8, "dropout": 0.0},
    "mixmil": {"projection_dim": 8},
}
"""Models whose steps are recorded where all bags have one size, with small settings."""


@pytest.fixture
def equal_bags():
    rng = np.random.default_rng(1)
    features = [rng.normal(i % 2, 1, (ONE_SIZE, 12)).astype(np.float32) for i in range(10)]
    return BagDataset.from_arrays(features, [i % 2 for i in range(10)])


def of_one_size(name):
    torch.manual_seed(0)
    return build_model(name, in_dim=12, num_classes=2, **OF_ONE_SIZE[name])


def one_size_epochs(steps, take):
    """Train three epochs, each seeded by its number, as the loop does."""
    losses = []
    for epoch in range(3):
        torch.manual_seed(epoch)
        steps.model.epoch = epoch
        losses.append(take().cpu())
    return torch.cat(losses)


def plain_one_size_epoch(steps, bags, device="cpu", dtype=torch.float32):
    losses = []
    for batch in PackedBatches(bags, ONE_SIZE_GROUPS):
        _, loss = steps.forward(batch.to(device, dtype=dtype))
        steps.backward(loss)
        steps.step()
        losses.append(loss.total.detach())
    return torch.stack(losses)


class Rehearsal(Recorder):
    """Stands for a recorder where there is no GPU: what it replays is done again."""

    def __init__(self, device):
        self.device = device
        self.begun = self.replayed = 0
        self.fails = False

    def begin_anew(self):
        self.begun += 1

    @contextmanager
    def aside(self):
        with torch.random.fork_rng([]):
            yield

    def record(self, work):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = torch.empty(())

        def replay():
            self.replayed += 1
            result.copy_(work())

        return Recording(replay, result, work)


class TorchAdam(AdamStep):
    """Stands for `AdamStep` where there is no GPU: torch's own step, once its table is filled."""

    def __init__(self, optimiser, rates, clip, halves):
        self.optimiser, self.clip, self.halves = optimiser, clip, halves
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]

    def table(self):
        return torch.zeros(1)

    def fill(self, table):
        table.fill_(1)

    def launch(self, table):
        if table.item():
            for parameter, half in self.halves.items():
                parameter.grad = half.grad.to(parameter.dtype)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
            self.optimiser.step()
            for parameter, half in self.halves.items():
                half.detach().copy_(parameter)
        self.forget_gradients()  # a recording writes them anew

    def forget_gradients(self):
        self.optimiser.zero_grad()
        for half in self.halves.values():
            half.grad = None


@pytest.fixture
def rehearsed(monkeypatch):
    monkeypatch.setattr(module, "Recorder", Rehearsal)
    monkeypatch.setattr(module, "AdamStep", TorchAdam)
    monkeypatch.setattr(module, "runs_triton", lambda _: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)


@pytest.mark.parametrize("name", [*OF_ONE_SIZE])
def test_steps_of_bags_of_one_size_train_as_plain_ones(name, equal_bags, rehearsed):
    # In double precision: Adam makes steps of the rounding of a gradient that is zero.
    model = of_one_size(name).double()
    settings = TrainingSettings(precision="32", learning_rate=5e-3, bags_per_step=4)
    plain_model, plain = trained(model, equal_bags, settings, "cpu")
    expected = one_size_epochs(
        plain, lambda: plain_one_size_epoch(plain, equal_bags, dtype=torch.float64)
    )
    found_model, steps = trained(model, equal_bags, settings, "cpu")
    recorded = recorded_steps(steps, on_device(equal_bags, torch.device("cpu")))
    batches = PackedBatches(equal_bags, ONE_SIZE_GROUPS)
    found = one_size_epochs(steps, lambda: recorded.epoch(batches))
    assert torch.allclose(found, expected.float(), atol=1e-6)
    wanted = plain_model.state_dict()
    for key, value in found_model.state_dict().items():  # the statistics of training among them
        assert torch.allclose(value, wanted[key], atol=1e-6), key
    assert recorded._recorder.replayed == 9
    # The loss of DGR-MIL gains terms after the warm-up, and is recorded again.
    assert recorded._recorder.begun == (1 if name == "dgrmil" else 0)
    assert {key[1] for key in recorded._recorded} == {4 * ONE_SIZE, 2 * ONE_SIZE}  # nothing fills


@pytest.mark.parametrize("name", ["transmil", "kernel-attention"])
def test_steps_of_one_size_in_half_precision_train_as_plain_ones(name, equal_bags, rehearsed):
    settings = TrainingSettings(precision="bf16", learning_rate=5e-3, bags_per_step=4)
    _, plain = trained(of_one_size(name), equal_bags, settings, "cpu")
    expected = one_size_epochs(plain, lambda: plain_one_size_epoch(plain, equal_bags))
    _, steps = trained(of_one_size(name), equal_bags, settings, "cpu")
    recorded = recorded_steps(steps, on_device(equal_bags, torch.device("cpu")))
    assert recorded._halves.by_parameter
    batches = PackedBatches(equal_bags, ONE_SIZE_GROUPS)
    found = one_size_epochs(steps, lambda: recorded.epoch(batches))
    assert torch.allclose(found.float(), expected.float(), atol=1e-2)
    assert found[-1] < 0.8 * found[0]


def test_a_step_that_cannot_be_recorded_is_computed(equal_bags, rehearsed):
    model = of_one_size("dgrmil")
    settings = TrainingSettings(precision="32", learning_rate=5e-3, bags_per_step=4)
    plain_model, plain = trained(model, equal_bags, settings, "cpu")
    batches = PackedBatches(equal_bags, ONE_SIZE_GROUPS)
    plain.seed_epoch()
    expected = PlainEngine(plain).epoch(batches)
    found_model, steps = trained(model, equal_bags, settings, "cpu")
    recorded = recorded_steps(steps, on_device(equal_bags, torch.device("cpu")))
    recorded._recorder.fails = True
    engine = ReplayEngine(recorded, PlainEngine(steps))
    steps.seed_epoch()
    assert torch.allclose(engine.epoch(batches), expected, atol=1e-6)
    assert engine.recorded is None
    wanted = plain_model.state_dict()
    for key, value in found_model.state_dict().items():
        assert torch.allclose(value, wanted[key], atol=1e-6), key


@pytest.mark.parametrize(
    ("name", "settings", "training", "is_recorded"),
    [
        ("transmil", {}, {}, True),
        ("transmil", {}, {"bags_per_step": 1}, False),  # bag by bag, as in `recorded_bags`
        ("transmil", {}, {"optimiser": "sgd"}, False),
        ("bayesmil", {"spatial": False}, {}, True),
        ("bayesmil", {}, {}, False),  # steps have no coordinates
        ("agp", {}, {}, False),
    ],
)
def test_which_steps_of_one_size_are_recorded(
    name, settings, training, is_recorded, equal_bags, bags, rehearsed
):
    model = build_model(name, in_dim=12, num_classes=2, **settings)
    chosen = TrainingSettings(**{"bags_per_step": 4, "precision": "32", **training})
    assert can_record(model, chosen, on_device(equal_bags, torch.device("cpu"))) == is_recorded
    assert not can_record(model, chosen, on_device(bags, torch.device("cpu")))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("name", ["transmil", "dgrmil", "kernel-attention"])
def test_recorded_steps_of_one_size_are_the_plain_ones_in_double_precision(
    name, precision, equal_bags
):
    model = of_one_size(name)
    settings = TrainingSettings(precision=precision, learning_rate=5e-3, bags_per_step=4)
    _, steps = trained(model, equal_bags, settings, "cuda")
    recorded = recorded_steps(steps, on_device(equal_bags, torch.device("cuda")))
    batches = PackedBatches(equal_bags, ONE_SIZE_GROUPS)
    found = one_size_epochs(steps, lambda: recorded.epoch(batches)).double()
    exact = TrainingSettings(precision="64", learning_rate=5e-3, bags_per_step=4)
    _, plain = trained(model.double(), equal_bags, exact, "cpu")
    expected = one_size_epochs(
        plain, lambda: plain_one_size_epoch(plain, equal_bags, dtype=torch.float64)
    )
    limit = 1e-3 if precision == "32" else 5e-2
    assert torch.allclose(found, expected, rtol=limit, atol=limit)


@pytest.mark.gpu
def test_the_network_of_digits_gives_the_same_with_channels_last():
    torch.manual_seed(0)
    network = DigitCNN().double()
    pixels = torch.randn(5, DigitCNN.in_dim, dtype=torch.float64)
    expected = network(pixels)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    network.cuda()
    found = network(pixels.cuda())
    found.sum().backward()
    assert torch.allclose(found.cpu(), expected)
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        assert parameter.grad.stride() == parameter.stride()  # the optimiser reads it as it lies
        assert torch.allclose(parameter.grad.cpu(), gradient)
