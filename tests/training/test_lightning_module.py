from dataclasses import replace

import numpy as np
import pytest
import torch

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import TrainingError
from sgpmil.evaluation.metrics import slide_metrics
from sgpmil.evaluation.predictor import predict
from sgpmil.gp.noise import RepeatableNoise
from sgpmil.models.registry import build_model
from sgpmil.training import lightning_module
from sgpmil.training.batches import sequential_loader
from sgpmil.training.fold_data import FoldData
from sgpmil.training.lightning_module import LightningModel
from sgpmil.training.steps import OptimiserSteps

from .conftest import TINY, quick, toy_bags


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build_model("sgpmil", in_dim=4, num_classes=2, **TINY["sgpmil"])


def bridge(model, num_bags=7, **values):
    return LightningModel(model, quick(**values), num_bags, ("class0", "class1"))


def loss_of(module, batch):
    """Pass a batch as training does."""
    steps = OptimiserSteps(
        module.model, module.configure_optimizers(), module.settings, module.num_bags
    )
    return module.training_pass(steps, batch, 0).total


def test_the_loss_of_a_step_spreads_the_kl_over_the_training_bags(model):
    with torch.no_grad():
        model.gp.variational.variational_mean.fill_(2.0)
    batch = BagBatch.pack(list(toy_bags(3)))
    module = bridge(model, num_bags=7).train()
    torch.manual_seed(5)
    found = loss_of(module, batch)
    torch.manual_seed(5)
    output = model(batch)
    log_probs = output.logits.log_softmax(-1)
    nll = -torch.stack([log_probs[b, :, y] for b, y in enumerate(batch.labels)]).mean()
    # KL of N(m, I) from N(0, I) with five inducing points at 2: 5 · 2² / 2.
    assert model.kl().item() == pytest.approx(10.0, rel=1e-5)
    assert found.item() == pytest.approx(nll.item() + 10.0 / 7, rel=1e-5)
    assert torch.equal(module.train_loss[0], found.detach())
    assert not module.train_loss[0].requires_grad


def test_adamw_decays_every_parameter(model):
    optimiser = bridge(model, weight_decay=0.03, learning_rate=0.2).configure_optimizers()
    assert isinstance(optimiser, torch.optim.AdamW)
    (group,) = optimiser.param_groups
    assert (group["weight_decay"], group["lr"]) == (0.03, 0.2)
    assert {id(p) for p in group["params"]} == {id(p) for p in model.parameters()}


def test_validation_is_the_metrics_of_the_predictions_and_the_mean_loss_over_bags(model):
    model.eval()
    val = toy_bags(5, seed=3)
    module = bridge(model, num_bags=7).eval()
    with torch.no_grad():
        # Batches of unlike size: the mean must be over bags.
        for i, batch in enumerate(sequential_loader(val, 3)):
            module.validation_step(batch, i)
        module.on_validation_epoch_end()
        losses = []
        for bag in val:
            batch = BagBatch.pack([bag])
            output = model(batch, RepeatableNoise(model.settings.noise_seed))
            losses.append(float(model.loss(output, batch.labels, 7).total))
    metrics = slide_metrics(predict(model, val))
    assert module.epoch_metrics["val_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert module.epoch_metrics["val_auc"] == metrics.auc
    assert module.epoch_metrics["val_balanced_accuracy"] == metrics.balanced_accuracy
    assert module.val_predictions == []
    assert module.val_loss == []


def test_validation_in_half_precision_gives_distributions(model):
    module = bridge(model.eval()).eval()
    val = toy_bags(40, gap=0.3)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for i, batch in enumerate(sequential_loader(val, 8)):
            module.validation_step(batch, i)
        sums = [p.probs.sum() for p in module.val_predictions]
        assert sums == pytest.approx([1.0] * 40, abs=1e-9)
        module.on_validation_epoch_end()
    assert 0 <= module.epoch_metrics["val_auc"] <= 1


def test_a_loss_that_is_not_finite_names_epoch_step_bags_and_cause(model):
    called = []
    module = bridge(model).train()
    module.on_divergence = lambda: called.append(True)
    batch = BagBatch.pack(list(toy_bags(2)))
    batch = replace(batch, features=batch.features.index_fill(0, torch.tensor([1]), torch.nan))
    with pytest.raises(
        TrainingError, match=r"epoch 0, step 0, bags s0, s1\. Likely cause: the bag's features"
    ):
        loss_of(module, batch)
    assert called == [True]


def test_an_error_of_the_model_is_told_with_where_it_happened(model):
    module = bridge(model).train()
    with torch.no_grad():
        model.gp.inducing_points[0, 0] = torch.nan
    with pytest.raises(TrainingError, match=r"epoch 0, step 0, bags s0, s1\..*Cholesky"):
        loss_of(module, BagBatch.pack(list(toy_bags(2))))


def test_epoch_seeds_are_fixed_and_differ():
    seeds = {lightning_module._epoch_seed(s, e) for s in range(5) for e in range(20)}
    assert len(seeds) == 100
    assert lightning_module._epoch_seed(3, 4) == lightning_module._epoch_seed(3, 4)


def test_batches_arrive_as_they_are_stored():
    data = FoldData(toy_bags(2), None, quick(precision="64"))
    batch = BagBatch.pack(list(toy_bags(2))).to(dtype=torch.float16)
    moved = data.transfer_batch_to_device(batch, torch.device("cpu"), 0)
    assert torch.equal(moved.features, batch.features)
    assert moved.features.dtype == torch.float16  # half to copy; the model takes it as it needs
    assert moved.labels.tolist() == [0, 1]
    assert data.val_dataloader() == []
