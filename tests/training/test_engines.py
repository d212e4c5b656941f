from dataclasses import replace

import numpy as np
import pytest
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.errors import TrainingError
from sgpmil.models.contract import Loss
from sgpmil.models.registry import build_model, list_models
from sgpmil.training.batches import PackedBatches
from sgpmil.training.engines import (
    OptimiserSteps,
    PlainEngine,
    TrainingState,
    epoch_seed,
    first_weights_not_finite,
    likely_cause,
)
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.settings import TrainingSettings, default_training

from .conftest import TINY, quick, toy_bags


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build_model("sgpmil", in_dim=4, num_classes=2, preset="points", **TINY["sgpmil"])


def engine_of(model, num_bags=7, **values):
    settings = quick(**values)
    model.train()
    return PlainEngine(OptimiserSteps(model, build_optimiser(settings, model), settings, num_bags))


def test_the_loss_of_a_step_spreads_the_kl_over_the_training_bags(model):
    with torch.no_grad():
        model.gp.variational.variational_mean.fill_(2.0)
    batch = BagBatch.pack(list(toy_bags(3)))
    engine = engine_of(model, num_bags=7)
    torch.manual_seed(5)
    found = engine.loss(batch, 0).total
    torch.manual_seed(5)
    output = model(batch)
    log_probs = output.logits.log_softmax(-1)
    nll = -torch.stack([log_probs[b, :, y] for b, y in enumerate(batch.labels)]).mean()
    # KL of N(m, I) from N(0, I) with five inducing points at 2: 5 · 2² / 2.
    assert model.kl().item() == pytest.approx(10.0, rel=1e-5)
    assert found.item() == pytest.approx(nll.item() + 10.0 / 7, rel=1e-5)


def test_a_loss_that_is_not_finite_names_epoch_step_bags_and_cause(model):
    batch = BagBatch.pack(list(toy_bags(2)))
    batch = replace(batch, features=batch.features.index_fill(0, torch.tensor([1]), torch.nan))
    with pytest.raises(
        TrainingError, match=r"epoch 1, step 0, bags s0, s1\. Likely cause: the bag's features"
    ):
        engine_of(model).loss(batch, 0)


def test_an_error_of_the_model_is_told_with_where_it_happened(model):
    with torch.no_grad():
        model.gp.inducing_points[0, 0] = torch.nan
    with pytest.raises(TrainingError, match=r"epoch 1, step 0, bags s0, s1\..*Cholesky"):
        engine_of(model).loss(BagBatch.pack(list(toy_bags(2))), 0)


def test_epoch_seeds_are_fixed_and_differ():
    seeds = {epoch_seed(s, e, r) for s in range(5) for e in range(20) for r in range(3)}
    assert len(seeds) == 300
    assert epoch_seed(3, 4) == epoch_seed(3, 4)


NYSTROM = {"hidden_dim": 8, "num_heads": 2, "num_landmarks": 2}
SMALL = TINY | {"dgrmil": NYSTROM, "transmil": NYSTROM, "mixmil": {"projection_dim": 4}}
GROUPS = [[0, 1], [2], [3, 4, 5], [7, 6]]


def test_a_state_is_put_back():
    bags = toy_bags()
    settings = TrainingSettings(precision="32")
    torch.manual_seed(0)
    model = build_model(
        "sgpmil", in_dim=4, num_classes=2, preset="points", **TINY["sgpmil"]
    ).train()
    steps = OptimiserSteps(model, build_optimiser(settings, model), settings, len(bags))

    def epoch():
        for number in range(len(GROUPS)):
            _, loss = steps.forward(PackedBatches(bags, GROUPS)[number])
            steps.backward(loss)
            steps.step()

    fresh = TrainingState(steps)
    begun = [p.detach().clone() for p in model.parameters()]
    epoch()
    after = TrainingState(steps)
    later = [p.detach().clone() for p in model.parameters()]
    epoch()
    assert int(steps.optimiser.state[next(model.parameters())]["step"]) == 2 * len(GROUPS)
    after.restore()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), later, strict=True))
    assert int(steps.optimiser.state[next(model.parameters())]["step"]) == len(GROUPS)
    fresh.restore()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), begun, strict=True))
    for state in steps.optimiser.state.values():  # there was none
        assert not any(value.any() for value in state.values())


@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize("optimiser", ["adamw", "adam", "sgd", "lookahead-radam"])
@pytest.mark.parametrize("name", ["sgpmil", "dgrmil", "mixmil", "transmil"])
def test_an_epoch_that_was_taken_back_leaves_no_trace(name, optimiser, begin):
    bags = toy_bags()
    settings = TrainingSettings(
        precision="32", optimiser=optimiser, momentum=0.9, learning_rate=0.01
    )

    def trained(*, again):
        torch.manual_seed(0)
        model = build_model(name, in_dim=4, num_classes=2, **SMALL[name]).train()
        steps = OptimiserSteps(model, build_optimiser(settings, model), settings, len(bags))
        for epoch in range(3):
            model.epoch = 50 + epoch
            for _ in range(2 if again and epoch == begin else 1):
                before = TrainingState(steps)
                torch.manual_seed(epoch)
                for number in range(len(GROUPS)):
                    _, loss = steps.forward(PackedBatches(bags, GROUPS)[number])
                    steps.backward(loss)
                    steps.step()
                if again and epoch == begin:
                    again = False
                    before.restore()
        return model.state_dict()

    found, expected = trained(again=True), trained(again=False)
    assert all(torch.equal(value, found[key]) for key, value in expected.items())


@pytest.fixture
def parts():
    torch.manual_seed(0)
    model = build_model("sgpmil", in_dim=4, num_classes=2, preset="points", **TINY["sgpmil"])
    batch = BagBatch.pack(list(toy_bags(3)))
    with torch.no_grad():
        output = model(batch)
        loss = model.loss(output, batch.labels, 3)
    return model, batch, output, loss


def spoilt(tensor, value=torch.nan):
    tensor = tensor.clone()
    tensor.view(-1)[0] = value
    return tensor


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_features(parts, value):
    model, batch, output, loss = parts
    batch = replace(batch, features=spoilt(batch.features, value))
    # The first in the chain is named, whatever follows from it.
    output = replace(output, logits=spoilt(output.logits))
    assert "features hold NaN or infinity" in likely_cause(model, batch, output, loss)


def test_weights(parts):
    model, batch, output, loss = parts
    assert first_weights_not_finite(model) is None
    with torch.no_grad():
        model.classifier.bias[1] = torch.inf
    assert first_weights_not_finite(model) == "classifier.bias"
    output = replace(output, attention=spoilt(output.attention))
    cause = likely_cause(model, batch, output, loss)
    assert "'classifier.bias' are not finite" in cause
    assert "lower the learning rate" in cause


def test_attention(parts):
    model, batch, output, loss = parts
    output = replace(output, attention=spoilt(output.attention), logits=spoilt(output.logits))
    cause = likely_cause(model, batch, output, loss)
    assert "the attention is not finite" in cause
    assert "jitter" in cause


def test_logits(parts):
    model, batch, output, loss = parts
    output = replace(output, logits=spoilt(output.logits, torch.inf))
    cause = likely_cause(model, batch, output, loss)
    assert "the logits overflow" in cause
    assert "precision" in cause


def test_loss_term(parts):
    model, batch, output, loss = parts
    loss = Loss.of(nll=loss.terms["nll"], kl=torch.tensor(torch.inf))
    cause = likely_cause(model, batch, output, loss)
    assert "the loss term 'kl' overflows" in cause


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", [n for n in list_models() if n != "agp"])
def test_no_step_waits_for_the_gpu(name):
    torch.manual_seed(0)
    model = build_model(name, in_dim=16, num_classes=2).cuda().train()
    settings = default_training(name)
    steps = OptimiserSteps(model, build_optimiser(settings, model), settings, 18)
    rng = np.random.default_rng(0)
    bags = [
        Bag(
            torch.from_numpy(rng.normal(size=(n, 16)).astype(np.float32)),
            f"s{n}",
            label=n % 2,
            coords=256 * torch.from_numpy(rng.integers(0, 40, (n, 2))),
            patch_size=256,
        )
        for n in range(1, 37, 2)
    ]
    batch = BagBatch.pack(bags).to("cuda")

    def step() -> None:
        _, loss = steps.forward(batch)
        steps.backward(loss)
        if settings.optimiser in ("adamw", "adam"):  # the others ask how many steps there were
            steps.step()

    step()  # libraries wait at their first call
    try:
        torch.cuda.set_sync_debug_mode("error")
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
