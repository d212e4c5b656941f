import pytest
import torch

from sgpmil.errors import (
    TrainingError,
)
from sgpmil.evaluation.predictor import predict
from sgpmil.models.checkpoint import load_model
from sgpmil.models.contract import Loss
from sgpmil.training.batches import draw_epoch

from .conftest import (
    epochs_of,
    file_weights,
    same_weights,
    toy_bags,
    train,
    weights_of,
)


def drawn_slides(epoch, step, seed=0):
    order = draw_epoch([i % 2 for i in range(8)], seed=seed, epoch=epoch, balanced=True)
    return ", ".join(f"s{i}" for i in order[2 * step : 2 * step + 2])


def test_a_loss_that_becomes_nan_is_told_with_place_and_cause(tmp_path, spoil_loss, monkeypatch):
    expected = weights_of(train(epochs=4))
    nan = torch.tensor(torch.nan)
    # Four steps an epoch: the seventh is the third of epoch 1.
    spoil_loss(6, lambda model, loss: Loss.of(nll=loss.terms["nll"], kl=nan))
    slides = drawn_slides(epoch=1, step=2)
    with pytest.raises(
        TrainingError,
        match=rf"kl nan\) at epoch 1, step 6, bags {slides}\. Likely cause: the loss term 'kl'",
    ):
        train(tmp_path, epochs=4)
    monkeypatch.undo()
    diverged = file_weights(tmp_path / "diverged.safetensors")
    assert not any(value.isnan().any() for value in diverged.values())
    assert not same_weights(diverged, expected)
    assert same_weights(weights_of(train(tmp_path, epochs=4, resume=True)), expected)
    assert epochs_of(tmp_path) == [0, 1, 2, 3]


def test_a_diverged_model_can_be_loaded(tmp_path, spoil_loss):
    spoil_loss(3, lambda model, loss: Loss.of(nll=torch.tensor(torch.inf)))
    with pytest.raises(TrainingError, match="nll inf"):
        train(tmp_path, model="sgpmil")
    model, info = load_model(tmp_path / "diverged.safetensors")
    assert info.class_names == ("class0", "class1")
    assert len(predict(model, toy_bags(3))) == 3


def test_weights_that_become_nan_in_an_epochs_last_step_are_not_checkpointed(
    tmp_path, spoil_loss, monkeypatch
):
    expected = weights_of(train(epochs=4))

    def finite_with_a_gradient_that_is_not(model, loss):
        zero = (model.classifier.bias.sum() * 0).square().sqrt()
        return Loss(loss.total + zero, loss.terms)

    spoil_loss(7, finite_with_a_gradient_that_is_not)
    slides = drawn_slides(epoch=1, step=3)
    with pytest.raises(
        TrainingError, match=rf"weights are not finite at epoch 1, step 7, bags {slides}\..*lower"
    ):
        train(tmp_path, epochs=4)
    monkeypatch.undo()
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 0
    assert (tmp_path / "diverged.safetensors").exists()
    assert same_weights(weights_of(train(tmp_path, epochs=4, resume=True)), expected)


def test_a_learning_rate_beyond_reason_ends_in_a_clear_error(tmp_path):
    with pytest.raises(
        TrainingError, match=r"(?i)epoch 0, step \d, bags s\d, s\d\..*lower the learning rate"
    ):
        train(tmp_path, learning_rate=1e30)
    assert (tmp_path / "diverged.safetensors").exists()


def test_divergence_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingError, match=r"not finite .* at epoch 0, step 1"):
        train(model="abmil", learning_rate=1e37)
    assert list(tmp_path.iterdir()) == []
