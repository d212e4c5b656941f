import copy
import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.sources import MemorySource
from sgpmil.bags.target import ClassTarget
from sgpmil.gpu.recording import Recorder, Recording
from sgpmil.gpu.resident import on_device
from sgpmil.models.contract import Recordable
from sgpmil.models.registry import build_model, list_models
from sgpmil.training.batches import PackedBatches
from sgpmil.training.engines import OptimiserSteps, PlainEngine, ReplayEngine
from sgpmil.training.fit import fit
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.recorded_bags import RecordedBags, recorded_bags
from sgpmil.training.settings import TrainingSettings, default_training, resolve_training

SIZES = (40, 150, 17, 1, 90)
EPOCHS = ([0, 1, 2, 3, 4, 0], [4, 4, 1, 3, 2, 0], [2, 3, 0, 1, 4, 1], [1, 0, 0, 3, 4, 2])

SMALL = {
    "transmil": {"hidden_dim": 16, "num_heads": 2, "num_landmarks": 8, "dropout": 0.0},
    "dgrmil": {
        "hidden_dim": 16,
        "num_heads": 2,
        "num_landmarks": 8,
        "dropout": 0.0,
        "instance_dropout": 0.0,
        "warmup_epochs": 2,
    },
    "bayesmil": {"hidden_dim": 16, "attention_dim": 8, "dropout": 0.0},
    "kernel-attention": {"hidden_dim": 16, "query_dim": 8, "attention_dim": 8, "dropout": 0.0},
    "mixmil": {"projection_dim": 8},
}
DRAWS = ("bayesmil", "mixmil")
"""Models whose training draws samples, which are not the same on a CPU and on a GPU."""


@pytest.fixture
def bags():
    rng = np.random.default_rng(0)
    found = [
        Bag(
            torch.from_numpy(rng.normal(i % 2, 1, (n, 12)).astype(np.float32)),
            f"s{i}",
            label=i % 2,
            coords=torch.from_numpy(256 * rng.permutation(400)[:n, None] * [1, 0]),
            patch_size=256,
        )
        for i, n in enumerate(SIZES)
    ]
    ids = tuple(bag.slide_id for bag in found)
    source = MemorySource(tuple(found), ["random"] * len(ids))
    return BagDataset(
        source, ids, ids, tuple(bag.label for bag in found), ClassTarget(("no", "yes"))
    )


def small(name, **settings):
    torch.manual_seed(0)
    return build_model(name, in_dim=12, num_classes=2, **(SMALL[name] | settings))


def steps_of(model, settings, bags, device="cpu"):
    model = copy.deepcopy(model).to(device).train()
    return OptimiserSteps(model, build_optimiser(settings, model), settings, len(bags))


def plain_epochs(steps, bags, device="cpu", dtype=torch.float32):
    """Train as the loop does without recordings."""
    losses = []
    for epoch, order in enumerate(EPOCHS):
        torch.manual_seed(epoch)
        steps.model.epoch = epoch
        for number, batch in enumerate(PackedBatches(bags, [[bag] for bag in order])):
            _, loss = steps.forward(batch.to(device, dtype=dtype))
            steps.backward(loss)
            losses.append(loss.total.detach())
            passes = number % steps.settings.accumulate_steps + 1
            if passes == steps.settings.accumulate_steps or number + 1 == len(order):
                steps.step(passes)
    return torch.stack(losses)


def recorded_epochs(recorded):
    losses = []
    for epoch, order in enumerate(EPOCHS):
        torch.manual_seed(epoch)
        recorded.steps.model.epoch = epoch
        batches = PackedBatches(recorded.train, [[bag] for bag in order])
        assert recorded.can_take(batches)
        losses.append(recorded.epoch(batches))
    return torch.cat(losses)


class Rehearsal(Recorder):
    """Stands for a recorder where there is no GPU: what it replays is done again."""

    def __init__(self, *, free=1.0, fails_at=None, as_it_fails=None):
        self.device = torch.device("cpu")
        self.free = free
        self.fails_at = fails_at
        self.as_it_fails = as_it_fails
        self.tried = 0
        self.replayed = 0

    def begin_anew(self):
        pass

    def free_share(self):
        return self.free

    def record(self, work):
        self.tried += 1
        if self.tried == self.fails_at:
            self.as_it_fails()
            raise RuntimeError("operation not permitted when stream is capturing")
        result = torch.empty(())

        def replay():
            self.replayed += 1
            result.copy_(work())

        return Recording(replay, result, work)


def equal(one, two):
    other = two.state_dict()
    return all(torch.equal(value, other[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("name", [*SMALL])
def test_replayed_passes_train_as_plain_ones(name, accumulate, bags):
    settings = resolve_training(name, {"accumulate_steps": accumulate, "precision": "32"})
    model = small(name)
    plain = steps_of(model, settings, bags)
    expected = plain_epochs(plain, bags)
    recorder = Rehearsal()
    steps = steps_of(model, settings, bags)
    found = recorded_epochs(RecordedBags(steps, bags, recorder))
    assert torch.equal(found, expected)
    assert equal(steps.model, plain.model)
    assert not equal(steps.model, model.train())
    visits = sum(len(order) for order in EPOCHS)
    # Plain is a bag's first visit, and with each part of the training its first again.
    parts = 2 if name == "dgrmil" else 1
    assert recorder.tried == parts * len(SIZES)
    assert recorder.replayed == visits - parts * len(SIZES)


def test_recordings_are_freed_without_a_collection_of_garbage(bags):
    steps = steps_of(small("transmil"), TrainingSettings(bags_per_step=1, precision="32"), bags)
    recorded = RecordedBags(steps, bags, Rehearsal())
    recorded_epochs(recorded)
    engine, alive = ReplayEngine(recorded, PlainEngine(steps)), weakref.ref(recorded)
    gc.disable()
    try:
        del recorded
        engine.forget()
        assert alive() is None
    finally:
        gc.enable()


def test_a_parameter_without_a_gradient_is_left_alone(bags):
    model = small("kernel-attention")
    model.unused = torch.nn.Parameter(torch.ones(3))
    settings = TrainingSettings(weight_decay=0.5, optimiser="sgd", momentum=0.9)
    steps = steps_of(model, settings, bags)
    recorded_epochs(RecordedBags(steps, bags, Rehearsal()))
    assert torch.equal(steps.model.unused, torch.ones(3))


def test_a_full_memory_holds_no_more_recordings(bags):
    settings = default_training("kernel-attention")
    model = small("kernel-attention")
    plain, steps = (steps_of(model, settings, bags) for _ in range(2))
    expected = plain_epochs(plain, bags)
    recorder = Rehearsal(free=0.1)
    recorded = RecordedBags(steps, bags, recorder)
    assert torch.equal(recorded_epochs(recorded), expected)
    assert equal(steps.model, plain.model)
    recorder.free = 0.9  # it is not asked again
    recorded_epochs(recorded)
    assert recorder.tried == 0


def test_where_a_recording_fails_bags_are_computed(bags):
    settings = default_training("kernel-attention")
    model = small("kernel-attention")
    plain, steps = (steps_of(model, settings, bags) for _ in range(2))
    expected = plain_epochs(plain, bags)

    def half_a_pass():
        _, loss = steps.forward(PackedBatches(bags, [[1]])[0])
        steps.backward(loss)

    recorder = Rehearsal(fails_at=3, as_it_fails=half_a_pass)
    recorded = RecordedBags(steps, bags, recorder)
    assert torch.equal(recorded_epochs(recorded), expected)
    assert equal(steps.model, plain.model)
    assert recorder.tried == 3
    # Earlier ones draw random numbers that are no longer in use.
    assert not recorded._recordings


def test_large_bags_are_not_recorded(bags, monkeypatch):
    monkeypatch.setattr("sgpmil.training.recorded_bags._MOST_ROWS", 100)
    recorder = Rehearsal()
    steps = steps_of(small("transmil"), default_training("transmil"), bags)
    recorded_epochs(RecordedBags(steps, bags, recorder))
    assert recorder.tried == sum(size <= 100 for size in SIZES)


def test_what_a_recording_reads_is_on_the_device_before(bags):
    steps = steps_of(small("bayesmil"), default_training("bayesmil"), bags)
    batch = RecordedBags(steps, bags, Rehearsal())._batch(1)
    assert batch.bounds.tolist() == [0, SIZES[1]]
    assert batch.labels.tolist() == [1]
    assert torch.equal(batch.features, bags[1].features)
    assert torch.equal(batch.coords, bags[1].coords)


NOT_FINITE, NO_MEMORY = "not finite", "no memory"


@pytest.mark.parametrize("trouble", [None, NOT_FINITE, NO_MEMORY])
@pytest.mark.parametrize("name", ["transmil", "dgrmil"])
def test_fit_replays(name, trouble, bags, monkeypatch):
    """Also where an epoch is begun again without recordings, in the end with the same weights."""
    training = {"epochs": 4, "device": "cpu", "bags_per_step": 1}
    settings = {k: v for k, v in SMALL[name].items() if "dropout" not in k}
    expected = fit(bags, model=name, model_settings=settings, training=training)
    recorder = Rehearsal()
    epochs = []
    take = RecordedBags.epoch

    def epoch(self, batches):
        epochs.append(self)
        if trouble == NO_MEMORY and len(epochs) == 3:
            batches = PackedBatches(batches.dataset, batches.groups[:3])
        losses = take(self, batches)
        if trouble == NO_MEMORY and len(epochs) == 3:
            next(iter(self._gradients)).grad = torch.ones_like(next(iter(self._gradients)))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return losses / 0 if trouble == NOT_FINITE and len(epochs) in (1, 3) else losses

    monkeypatch.setattr(RecordedBags, "epoch", epoch)
    monkeypatch.setattr(
        "sgpmil.training.loop.recorded_bags",
        lambda steps, train: RecordedBags(steps, train, recorder),
    )
    found = fit(bags, model=name, model_settings=settings, training=training)
    assert equal(found, expected)
    assert recorder.replayed > 0
    assert len(epochs) == (3 if trouble == NO_MEMORY else 4)


def test_steps_of_several_bags_are_not_taken(bags):
    steps = steps_of(small("transmil"), default_training("transmil"), bags)
    recorded = RecordedBags(steps, bags, Rehearsal())
    assert recorded.can_take(PackedBatches(bags, [[0], [1]]))
    assert not recorded.can_take(PackedBatches(bags, [[0, 1], [2]]))


def test_bags_are_not_recorded_without_a_gpu(bags):
    steps = steps_of(small("transmil"), default_training("transmil"), bags)
    assert recorded_bags(steps, bags) is None
    assert recorded_bags(steps, on_device(bags, torch.device("cpu"))) is None


@pytest.mark.gpu
def test_all_models_with_weights_but_agp_are_recorded(bags):
    resident = on_device(bags, torch.device("cuda"))
    for name in list_models():
        model = build_model(name, in_dim=12, num_classes=2)
        settings = replace(default_training(name), bags_per_step=1)
        steps = steps_of(model, settings, bags, "cuda")
        recorded = (
            model.recordable is Recordable.STEPS or recorded_bags(steps, resident) is not None
        )
        assert recorded == (name not in ("agp", "bag-size")), name


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "training"),
    [
        ("transmil", {"precision": "16"}),
        ("transmil", {"bags_per_step": 2}),
        ("agp", {}),
    ],
)
def test_others_are_not(name, training, bags):
    steps = steps_of(
        build_model(name, in_dim=12, num_classes=2), resolve_training(name, training), bags, "cuda"
    )
    assert recorded_bags(steps, on_device(bags, torch.device("cuda"))) is None


@pytest.mark.gpu
def test_after_a_failed_recording_others_succeed():
    device = torch.device("cuda")
    recorder = Recorder(device)
    x = torch.ones(1000, device=device)

    def waiting():
        return (x * x.sum().item()).sum()

    def good():
        return torch.nn.functional.dropout(x, 0.5).sum()

    good()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            recorder.record(waiting)
        recorder.begin_anew()
    torch.manual_seed(3)
    recording = recorder.record(good)
    recording.replay()
    found = recording.result.item()
    torch.manual_seed(3)
    assert found == good().item()
    # Memory is handed out as before: what is free is given back.
    before = torch.cuda.memory_reserved()
    large = torch.empty(2**28, device=device)
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("name", [n for n in SMALL if n not in DRAWS])
def test_replayed_passes_are_the_plain_ones_in_double_precision(name, precision, bags):
    model = small(name)
    training = {"precision": precision, "learning_rate": 5e-3}
    steps = steps_of(model, resolve_training(name, training), bags, "cuda")
    recorded = recorded_bags(steps, on_device(bags, torch.device("cuda")))
    found = recorded_epochs(recorded).cpu().double()
    assert len(recorded._recordings) == len(SIZES)
    settings = resolve_training(name, training | {"precision": "64"})
    plain = steps_of(model.double(), settings, bags)
    expected = plain_epochs(plain, bags, dtype=torch.float64)
    limit = 1e-3 if precision == "32" else 5e-2
    assert torch.allclose(found, expected, rtol=limit, atol=limit)
    assert (expected[:6] - expected[-6:]).abs().max() > 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("name", [*SMALL])
def test_replayed_passes_are_the_plain_ones_bit_by_bit(name, precision, bags, monkeypatch):
    # With dropout and draws: recordings take the same random numbers.
    settings = {k: v for k, v in SMALL[name].items() if "dropout" not in k}
    training = {"epochs": 5, "device": "gpu", "precision": precision, "bags_per_step": 1}
    used = []
    take = RecordedBags.epoch
    monkeypatch.setattr(
        RecordedBags, "epoch", lambda self, *args: (used.append(self), take(self, *args))[1]
    )
    found = fit(bags, model=name, model_settings=settings, training=training)
    assert len(used) == 5
    monkeypatch.setattr("sgpmil.training.loop.recorded_bags", lambda *_: None)
    expected = fit(bags, model=name, model_settings=settings, training=training)
    assert len(used) == 5
    assert equal(found.cpu(), expected.cpu())


@pytest.mark.gpu
def test_a_model_that_waits_is_trained_all_the_same(bags, monkeypatch):
    model = small("kernel-attention", dropout=0.2)
    settings = default_training("kernel-attention")
    plain, steps = (steps_of(model, settings, bags, "cuda") for _ in range(2))
    forward = type(model).forward

    def waiting(self, batch):
        found = forward(self, batch)
        found.logits.sum().item()
        return found

    monkeypatch.setattr(type(model), "forward", waiting)
    recorded = recorded_bags(steps, on_device(bags, torch.device("cuda")))
    assert torch.equal(recorded_epochs(recorded), plain_epochs(plain, bags, "cuda"))
    assert not recorded._recordings
    assert equal(steps.model, plain.model)
