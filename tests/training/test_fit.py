import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import (
    CheckpointError,
    LabelError,
    MissingPartError,
    RunFolderError,
    SettingsError,
    TrainingError,
)
from sgpmil.evaluation.predictor import predict
from sgpmil.evaluation.slide_metrics import slide_metrics
from sgpmil.models.checkpoint import load_model
from sgpmil.models.contract import Loss
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.training import callbacks
from sgpmil.training.batches import draw_epoch
from sgpmil.training.fit import fit

from .conftest import (
    TINY,
    StopHere,
    file_weights,
    quick,
    same_weights,
    stop_after,
    toy_bags,
    weights_of,
)


def train(
    folder=None, *, model="sgpmil", bags=None, val=None, resume=False, on_epoch=None, **values
):
    return fit(
        toy_bags() if bags is None else bags,
        val=val,
        model=model,
        model_settings=TINY[model],
        training=quick(**values),
        folder=folder,
        resume=resume,
        on_epoch=on_epoch,
    )


def epochs_of(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [int(row["epoch"]) for row in csv.DictReader(file)]


# What is learnt


@pytest.mark.parametrize("model", ["sgpmil", "abmil"])
def test_learns_what_is_separable(model):
    fitted = train(model=model, bags=toy_bags(12), epochs=12, learning_rate=0.02)
    metrics = slide_metrics(predict(fitted, toy_bags(20, seed=9)))
    assert metrics.auc == 1.0
    assert metrics.balanced_accuracy == 1.0
    assert metrics.nll < 0.3


def test_the_model_comes_back_ready_to_predict(tmp_path):
    torch.manual_seed(3)
    fitted = train(tmp_path, epochs=1)
    assert not fitted.training
    assert {p.device.type for p in fitted.parameters()} == {"cpu"}
    assert same_weights(file_weights(tmp_path / "checkpoint.safetensors"), weights_of(fitted))


@pytest.mark.parametrize("model", ["sgpmil", "abmil"])
def test_the_seed_decides_everything(model):
    torch.manual_seed(1)
    one = weights_of(train(model=model, seed=4))
    torch.manual_seed(2)
    assert same_weights(weights_of(train(model=model, seed=4)), one)
    assert not same_weights(weights_of(train(model=model, seed=5)), one)


def test_writing_to_a_folder_does_not_change_the_model(tmp_path):
    assert same_weights(weights_of(train(tmp_path)), weights_of(train()))


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(val=toy_bags(4, seed=1), select="best")
    assert list(tmp_path.iterdir()) == []


def test_the_kl_weighs_one_over_the_number_of_training_bags(monkeypatch):
    original, seen = SGPMIL.loss, []

    def spy(self, output, labels, num_bags):
        loss = original(self, output, labels, num_bags)
        seen.append((self.training, loss.terms["kl"].item(), self.kl().item()))
        return loss

    monkeypatch.setattr(SGPMIL, "loss", spy)
    train(bags=toy_bags(10), val=toy_bags(4, seed=1), epochs=2, learning_rate=0.1)
    assert {training for training, _, _ in seen} == {True, False}
    # Once the posterior has left the prior; also in validation, on the scale of training.
    later = [(term, kl) for _, term, kl in seen if kl > 1e-3]
    assert len(later) > 5
    assert [term for term, _ in later] == pytest.approx([kl / 10 for _, kl in later], rel=1e-5)


@pytest.mark.parametrize(("clip", "clipped"), [(0.01, True), (0.0, False)])
def test_gradients_are_clipped(clip, clipped):
    norms = []

    def measure(optimiser, args, kwargs):
        gradients = [p.grad for g in optimiser.param_groups for p in g["params"]]
        norms.append(float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))))

    hook = register_optimizer_step_post_hook(measure)
    try:
        train(epochs=1, gradient_clip=clip)
    finally:
        hook.remove()
    assert len(norms) == 4
    if clipped:
        assert norms == pytest.approx([0.01] * 4, rel=1e-3)
    else:
        assert max(norms) > 0.05


def test_each_epoch_is_trained_at_its_learning_rate():
    rates = []

    def note(optimiser, args, kwargs):
        rates.append(optimiser.param_groups[0]["lr"])

    hook = register_optimizer_step_post_hook(note)
    try:
        train(epochs=3, warmup_epochs=2, warmup_learning_rate=1e-3, min_learning_rate=0.0)
    finally:
        hook.remove()
    assert rates == pytest.approx([1e-3] * 4 + [1e-2] * 8)


# Precision, device, logger


@pytest.mark.parametrize("model", ["sgpmil", "abmil"])
@pytest.mark.parametrize("precision", ["bf16", "64"])
def test_other_precisions_learn_too(tmp_path, model, precision):
    fitted = train(
        tmp_path,
        model=model,
        bags=toy_bags(10),
        val=toy_bags(6, seed=1),
        epochs=10,
        learning_rate=0.02,
        precision=precision,
        select="best",
    )
    dtype = torch.float64 if precision == "64" else torch.float32
    assert {p.dtype for p in fitted.parameters()} == {dtype}
    assert slide_metrics(predict(fitted, toy_bags(12, seed=9))).auc == 1.0


def test_bf16_is_not_32():
    assert not same_weights(weights_of(train(precision="bf16")), weights_of(train()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(SettingsError, match=r"Expected a GPU .* found none"):
        train(device="gpu")


def test_tensorboard_writes_beside_the_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    train(tmp_path, epochs=2, logger="tensorboard")
    assert list((tmp_path / "tensorboard").glob("events.*"))
    assert epochs_of(tmp_path) == [0, 1]


@pytest.mark.parametrize("logger", ["tensorboard", "mlflow", "wandb"])
def test_a_logger_that_is_not_installed_is_named(tmp_path, monkeypatch, logger):
    from lightning.pytorch import loggers

    names = {"tensorboard": "TensorBoard", "mlflow": "MLFlow", "wandb": "Wandb"}

    def missing(*args, **kwargs):
        raise ModuleNotFoundError(logger)

    monkeypatch.setattr(loggers, f"{names[logger]}Logger", missing)
    with pytest.raises(MissingPartError, match=f"'{logger}' .*pip install {logger}"):
        train(tmp_path, logger=logger)


def test_an_unknown_model_setting_is_refused():
    with pytest.raises(SettingsError, match="num_inducing"):
        fit(toy_bags(4), model_settings={"num_inducin": 3}, training=quick())


def test_torch_is_left_as_it_was():
    before = torch.are_deterministic_algorithms_enabled()
    handler = signal.getsignal(signal.SIGINT)
    train(epochs=1)
    with pytest.raises(KeyboardInterrupt):
        train(epochs=1, on_epoch=stop_after(0, KeyboardInterrupt))
    assert torch.are_deterministic_algorithms_enabled() == before
    assert signal.getsignal(signal.SIGINT) is handler


# What is refused


def unlabelled_bags():
    arrays = [np.ones((2, 4))] * 3
    return BagDataset.from_arrays(arrays, [0, None, 1], class_names=["a", "b"])


def test_unlabelled_bags_are_refused():
    with pytest.raises(LabelError, match=r"every training slide, but 1 of 3 .*'bag-1'"):
        train(bags=unlabelled_bags())
    with pytest.raises(LabelError, match=r"every validation slide, but 1 of 3 .*'bag-1'"):
        train(val=unlabelled_bags())


def test_a_single_class_is_refused():
    bags = toy_bags(8).subset(["s1", "s3", "s5"])
    with pytest.raises(LabelError, match="two classes, but all 3 are 'class1'"):
        train(bags=bags)


@pytest.mark.parametrize("values", [{"patience": 2}, {"select": "best"}])
def test_what_needs_validation_says_so(values):
    with pytest.raises(TrainingError, match=r"Expected validation slides.*select 'last'"):
        train(**values)


def test_the_auc_of_one_class_cannot_choose_an_epoch():
    one_class = toy_bags(6, seed=1).subset(["s0", "s2"])
    with pytest.raises(TrainingError, match="all 2 classes to monitor the AUC"):
        train(val=one_class, select="best", monitor="auc")
    # Other metrics are defined.
    train(val=one_class, select="best", monitor="loss", epochs=1)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"Could not write to .*file/run"):
        train(tmp_path / "file" / "run")


def test_an_error_of_the_callers_own_function_is_not_ours():
    with pytest.raises(OSError, match="mine") as found:
        train(on_epoch=lambda metrics: (_ for _ in ()).throw(OSError("mine")))
    assert type(found.value) is OSError


# Resume


@pytest.mark.parametrize("model", ["sgpmil", "abmil"])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("stop", [0, 2])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, model, balanced, stop):
    values = {"model": model, "epochs": 5, "warmup_epochs": 2, "balanced_sampling": balanced}
    values["val"] = toy_bags(4, seed=1)
    expected = weights_of(train(tmp_path / "whole", **values))
    with pytest.raises(StopHere):
        train(tmp_path / "cut", on_epoch=stop_after(stop), **values)
    assert not (tmp_path / "cut" / "checkpoint.safetensors").exists()
    torch.manual_seed(99)
    found = weights_of(train(tmp_path / "cut", resume=True, **values))
    assert same_weights(found, expected)
    metrics = [(tmp_path / name / "metrics.csv").read_bytes() for name in ("whole", "cut")]
    assert metrics[0] == metrics[1]
    assert epochs_of(tmp_path / "cut") == [0, 1, 2, 3, 4]
    for name in ("best", "last", "checkpoint"):
        one, other = (tmp_path / run / f"{name}.safetensors" for run in ("whole", "cut"))
        assert same_weights(file_weights(one), file_weights(other))


def test_a_run_may_be_interrupted_more_than_once(tmp_path):
    expected = weights_of(train(epochs=4))
    for epoch in range(3):
        with pytest.raises(StopHere):
            train(tmp_path, epochs=4, resume=epoch > 0, on_epoch=stop_after(epoch))
    assert same_weights(weights_of(train(tmp_path, epochs=4, resume=True)), expected)
    assert epochs_of(tmp_path) == [0, 1, 2, 3]


def test_ctrl_c_is_passed_on_and_can_be_resumed(tmp_path):
    expected = weights_of(train(epochs=4))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, epochs=4, on_epoch=stop_after(1, KeyboardInterrupt))
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert same_weights(weights_of(train(tmp_path, epochs=4, resume=True)), expected)
    assert epochs_of(tmp_path) == [0, 1, 2, 3]


def test_an_exit_of_the_callers_own_is_not_ctrl_c():
    with pytest.raises(SystemExit, match="7"):
        train(on_epoch=lambda metrics: sys.exit(7))


def test_a_finished_fit_is_not_trained_again(tmp_path):
    expected = weights_of(train(tmp_path))
    seen = []
    again = train(tmp_path, resume=True, on_epoch=seen.append)
    assert seen == []
    assert same_weights(weights_of(again), expected)
    assert epochs_of(tmp_path) == [0, 1, 2]


def test_without_resume_an_old_checkpoint_is_not_used(tmp_path):
    with pytest.raises(StopHere):
        train(tmp_path, seed=1, on_epoch=stop_after(1))
    assert same_weights(weights_of(train(tmp_path, seed=2)), weights_of(train(seed=2)))


def test_resume_in_a_new_folder_starts_at_the_beginning(tmp_path):
    found = train(tmp_path / "new", resume=True)
    assert same_weights(weights_of(found), weights_of(train()))


def test_a_checkpoint_that_failed_in_mid_write_leaves_the_last_good_one(tmp_path, monkeypatch):
    expected = weights_of(train(epochs=4))
    original, calls = torch.save, iter(range(100))

    def half_at_the_third(content, path):
        original(content, path)
        if next(calls) == 2:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            raise StopHere

    monkeypatch.setattr(callbacks.torch, "save", half_at_the_third)
    with pytest.raises(StopHere):
        train(tmp_path, epochs=4)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 1
    # The row of epoch 2 was written already, and must not be there twice.
    assert epochs_of(tmp_path) == [0, 1, 2]
    assert same_weights(weights_of(train(tmp_path, epochs=4, resume=True)), expected)
    assert epochs_of(tmp_path) == [0, 1, 2, 3]


DEATHS = {
    "in a step": """
import os, signal
from sgpmil.models.sgpmil import SGPMIL
original, calls = SGPMIL.loss, iter(range(100))
def loss(self, *args):
    if next(calls) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *args)
SGPMIL.loss = loss
""",
    "in a checkpoint": """
import os
original, calls = torch.save, iter(range(100))
def save(content, path):
    original(content, path)
    if next(calls) == 2:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        os._exit(9)
torch.save = save
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
def test_a_killed_process_can_be_resumed(tmp_path, death):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch
torch.set_num_threads({torch.get_num_threads()})
{DEATHS[death]}
from training.test_fit import train
train({str(tmp_path)!r}, epochs=4)
"""
    killed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert killed.returncode in (-signal.SIGKILL, 9), killed.stderr
    # Four steps an epoch: two epochs are complete, the third is not.
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 1
    found = weights_of(train(tmp_path, epochs=4, resume=True))
    assert same_weights(found, weights_of(train(epochs=4)))
    assert epochs_of(tmp_path) == [0, 1, 2, 3]


def cut_run(folder):
    with pytest.raises(StopHere):
        train(folder, on_epoch=stop_after(0))
    return folder / "last.ckpt"


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_damaged_checkpoint_is_refused_in_one_sentence(tmp_path, share):
    path = cut_run(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError, match=r"last\.ckpt.*Delete that file") as found:
        train(tmp_path, resume=True)
    assert "\n" not in str(found.value)
    # What it says to do works.
    path.unlink()
    assert same_weights(weights_of(train(tmp_path, resume=True)), weights_of(train()))


class Payload:
    """Runs code where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_checkpoint_cannot_run_code(tmp_path):
    path = cut_run(tmp_path / "run")
    content = torch.load(path, weights_only=True)
    torch.save({**content, "extra": Payload(tmp_path / "ran")}, path)
    with pytest.raises(CheckpointError, match=r"last\.ckpt"):
        train(tmp_path / "run", resume=True)
    assert not (tmp_path / "ran").exists()
    # The payload is a working one.
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    cut_run(tmp_path)
    with pytest.raises(CheckpointError, match="checkpoint of this model"):
        train(tmp_path, model="abmil", resume=True)


# Divergence


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
