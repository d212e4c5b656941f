import csv
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import (
    RunFolderError,
    TrainingError,
)
from sgpmil.evaluation.metrics import slide_metrics
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import predict
from sgpmil.gp.noise import RepeatableNoise
from sgpmil.models.checkpoint import load_model
from sgpmil.models.contract import Loss
from sgpmil.models.registry import build_model
from sgpmil.training.batches import draw_epoch, sequential_batches
from sgpmil.training.callbacks import Callback
from sgpmil.training.engines import PlainEngine
from sgpmil.training.fabric import start_fabric
from sgpmil.training.fit import fit
from sgpmil.training.fold_files import FoldFiles
from sgpmil.training.loop import TrainingLoop
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.settings import learning_rate

from .conftest import (
    TINY,
    StopHere,
    epochs_of,
    file_weights,
    quick,
    same_weights,
    stop_after,
    toy_bags,
    train,
    weights_of,
)


def judged(folder, seen=None, **values):
    """Train with validation bags."""
    if seen is not None:
        values["on_epoch"] = seen.append
    return train(folder, bags=toy_bags(6), val=toy_bags(4, seed=1), **values)


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    files = FoldFiles(tmp_path, seed=0)
    files.save_last({"value": 1})

    write = Path.write_bytes

    def half(place, content):
        write(place, b"half of a check")
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="no space"):
        files.save_last({"value": 2})
    assert files.read_last()["value"] == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "last.ckpt"]


def test_a_full_disk_in_training_is_an_error_of_the_run_folder(tmp_path, monkeypatch):
    def full(content, place):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunFolderError, match=f"write to {tmp_path}.*No space left"):
        judged(tmp_path)


# Best at epoch 2; a patience of 2 ends after epoch 4.
LOSSES = [5.0, 4.0, 1.0, 3.0, 2.0, 0.5, 0.4]


@pytest.mark.parametrize(("patience", "last"), [(1, 3), (2, 4), (3, 6), (0, 6)])
def test_early_stopping_counts_the_epochs_since_the_best(tmp_path, judge, patience, last):
    judge(LOSSES)
    seen = []
    judged(tmp_path, seen, epochs=7, patience=patience)
    assert [int(metrics["epoch"]) for metrics in seen] == list(range(last + 1))
    assert epochs_of(tmp_path) == list(range(last + 1))


@pytest.mark.parametrize(
    ("min_epochs", "last"),
    # A patience of 1 would stop after epoch 3; epoch 4 is no best one either, 5 and 6 are.
    [(0, 3), (4, 3), (5, 4), (6, 6), (100, 6)],
)
def test_early_stopping_waits_for_the_first_epochs(tmp_path, judge, min_epochs, last):
    judge(LOSSES)
    judged(tmp_path, epochs=7, patience=1, min_epochs=min_epochs)
    assert epochs_of(tmp_path) == list(range(last + 1))


@pytest.mark.parametrize("stop", [0, 2, 3, 4])
def test_a_resume_stops_where_the_whole_run_stops(tmp_path, judge, stop):
    judge(LOSSES)
    values = {"epochs": 7, "patience": 1, "min_epochs": 5, "select": "best"}
    expected = weights_of(judged(tmp_path / "whole", **values))
    with pytest.raises(StopHere):
        judged(tmp_path / "cut", on_epoch=stop_after(stop), **values)
    found = judged(tmp_path / "cut", resume=True, **values)
    assert epochs_of(tmp_path / "cut") == [0, 1, 2, 3, 4]
    assert same_weights(weights_of(found), expected)
    again = judged(tmp_path / "cut", resume=True, **values)
    assert epochs_of(tmp_path / "cut") == [0, 1, 2, 3, 4]
    assert same_weights(weights_of(again), expected)


@pytest.mark.parametrize("monitor", ["balanced_accuracy", "auc"])
def test_of_accuracy_and_auc_the_largest_is_the_best(tmp_path, judge, monitor):
    judge([0.5, 0.9, 0.8, 0.9, 0.7], monitor)
    judged(tmp_path, epochs=5, patience=3, monitor=monitor)
    # An equal value is no improvement.
    assert epochs_of(tmp_path) == [0, 1, 2, 3, 4]
    _, info = load_model(tmp_path / "best.safetensors")
    assert info.details == {"seed": 0, "epoch": 1}


def test_an_undefined_metric_is_never_the_best(tmp_path, judge):
    judge([math.nan, 2.0, math.nan])
    judged(tmp_path, epochs=3, select="best")
    assert load_model(tmp_path / "best.safetensors")[1].details["epoch"] == 1


def test_a_resume_remembers_the_best_epoch_for_stopping_and_keeping(tmp_path, judge):
    judge(LOSSES)
    expected = judged(tmp_path / "whole", epochs=7, patience=2, select="best")
    with pytest.raises(StopHere):
        judged(tmp_path / "cut", epochs=7, patience=2, select="best", on_epoch=stop_after(2))
    found = judged(tmp_path / "cut", epochs=7, patience=2, select="best", resume=True)
    assert epochs_of(tmp_path / "cut") == [0, 1, 2, 3, 4]
    assert same_weights(weights_of(found), weights_of(expected))
    assert load_model(tmp_path / "cut" / "best.safetensors")[1].details["epoch"] == 2


def test_a_run_that_stopped_early_is_not_trained_further_by_a_resume(tmp_path, judge):
    judge(LOSSES)
    expected = weights_of(judged(tmp_path, epochs=7, patience=2))
    seen = []
    again = judged(tmp_path, seen, epochs=7, patience=2, resume=True)
    assert seen == []
    assert same_weights(weights_of(again), expected)
    assert epochs_of(tmp_path) == [0, 1, 2, 3, 4]


class Remember(Callback):
    def __init__(self):
        self.weights = []

    def on_epoch_end(self, progress):
        self.weights.append(weights_of(progress.model))


def test_best_and_last_and_chosen_weights_are_those_of_their_epochs(tmp_path, judge):
    judge([3.0, 1.0, 2.0])
    remember = Remember()
    best = judged(tmp_path / "best", epochs=3, select="best", callbacks=[remember])
    after = remember.weights
    assert not same_weights(after[1], after[2])
    assert same_weights(file_weights(tmp_path / "best" / "best.safetensors"), after[1])
    assert same_weights(file_weights(tmp_path / "best" / "last.safetensors"), after[2])
    assert same_weights(file_weights(tmp_path / "best" / "checkpoint.safetensors"), after[1])
    assert same_weights(weights_of(best), after[1])
    last = judged(tmp_path / "last", epochs=3, select="last")
    assert same_weights(file_weights(tmp_path / "last" / "best.safetensors"), after[1])
    assert same_weights(file_weights(tmp_path / "last" / "checkpoint.safetensors"), after[2])
    assert same_weights(weights_of(last), after[2])


def test_without_a_folder_the_best_weights_are_kept_in_memory(tmp_path, judge):
    judge([3.0, 1.0, 2.0])
    in_memory = judged(None, epochs=3, select="best")
    judged(tmp_path, epochs=3, select="last")
    assert same_weights(weights_of(in_memory), file_weights(tmp_path / "best.safetensors"))
    assert not same_weights(weights_of(in_memory), file_weights(tmp_path / "last.safetensors"))


def test_metrics_csv_holds_what_is_reported(tmp_path):
    seen = []
    judged(tmp_path, seen, epochs=3)
    written = [{k: float(v) for k, v in row.items()} for row in rows(tmp_path)]
    assert written == seen
    rates = [learning_rate(quick(epochs=3), epoch) for epoch in range(3)]
    assert [row["learning_rate"] for row in written] == rates
    assert all(math.isfinite(value) for row in written for value in row.values())


def test_validation_columns_are_blank_without_validation(tmp_path):
    fit(toy_bags(4), model_settings=TINY["sgpmil"], training=quick(epochs=1), folder=tmp_path)
    (row,) = rows(tmp_path)
    assert row["val_loss"] == row["val_auc"] == row["val_balanced_accuracy"] == ""
    assert float(row["train_loss"]) > 0


def test_a_row_that_was_cut_off_or_will_be_written_again_is_dropped(tmp_path):
    expected_folder = tmp_path / "whole"
    judged(expected_folder, epochs=4)
    folder = tmp_path / "cut"
    with pytest.raises(StopHere):
        judged(folder, epochs=4, on_epoch=stop_after(1))
    with (folder / "metrics.csv").open("a") as file:
        # As if the kill came after the row of epoch 2 and within that of epoch 3.
        file.write("2,0.1,0.1,0.1,0.1,0.1\r\n0")
    judged(folder, epochs=4, resume=True)
    assert rows(folder) == rows(expected_folder)


def test_a_new_fit_in_the_same_folder_starts_the_curves_again(tmp_path):
    judged(tmp_path, epochs=3)
    judged(tmp_path, epochs=2)
    assert epochs_of(tmp_path) == [0, 1]


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
        match=rf"kl nan\) in epoch 2, step 6, bags {slides}\. Likely cause: the loss term 'kl'",
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
        TrainingError, match=rf"weights are not finite in epoch 2, step 7, bags {slides}\..*lower"
    ):
        train(tmp_path, epochs=4)
    monkeypatch.undo()
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 0
    assert (tmp_path / "diverged.safetensors").exists()
    assert same_weights(weights_of(train(tmp_path, epochs=4, resume=True)), expected)


def test_a_learning_rate_beyond_reason_ends_in_a_clear_error(tmp_path):
    with pytest.raises(
        TrainingError, match=r"(?i)epoch 1, step \d, bags s\d, s\d\..*learning rate"
    ):
        train(tmp_path, learning_rate=1e30)
    assert (tmp_path / "diverged.safetensors").exists()


def test_divergence_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingError, match=r"not finite .* in epoch 1, step 1"):
        train(model="abmil", learning_rate=1e37)
    assert list(tmp_path.iterdir()) == []


def test_each_epoch_draws_its_own_bags(monkeypatch):
    drawn = []
    original = PlainEngine.epoch

    def epoch(self, batches):
        drawn.append([bag for group in batches.groups for bag in group])
        return original(self, batches)

    monkeypatch.setattr(PlainEngine, "epoch", epoch)
    train(epochs=3, seed=5)
    labels = list(toy_bags().labels)
    expected = [draw_epoch(labels, seed=5, epoch=e, balanced=True) for e in range(3)]
    assert drawn == expected
    assert expected[0] != expected[1] != expected[2]


def loop_of(model, val):
    """Make a loop that is not run."""
    return TrainingLoop(
        model,
        toy_bags(7),
        val,
        quick(),
        start_fabric("cpu"),
        FoldFiles(None, seed=0),
    )


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build_model("sgpmil", in_dim=4, num_classes=2, preset="points", **TINY["sgpmil"])


def test_validation_is_the_metrics_of_the_predictions_and_the_mean_loss_over_bags(
    model, monkeypatch
):
    val = toy_bags(5, seed=3)
    # Batches of unlike size: the mean must be over bags.
    small = partial(sequential_batches, max_bags=3)
    monkeypatch.setattr("sgpmil.training.loop.sequential_batches", small)
    found = loop_of(model, val).validate()
    assert not model.training
    losses = []
    for bag in val:
        batch = BagBatch.pack([bag])
        output = model(batch, RepeatableNoise(model.settings.noise_seed))
        losses.append(model.loss(output, batch.labels, 7).total.item())
    metrics = slide_metrics(predict(model, val))
    assert found["val_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["val_auc"] == metrics.auc
    assert found["val_balanced_accuracy"] == metrics.balanced_accuracy


def test_validation_in_half_precision_gives_distributions(model, monkeypatch):
    tables = []

    def remember(*parts):
        tables.append(PredictionTable(*parts))
        return tables[-1]

    monkeypatch.setattr("sgpmil.training.loop.PredictionTable", remember)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loop_of(model, toy_bags(40, gap=0.3)).validate()
    assert tables[0].probs.sum(1) == pytest.approx([1.0] * 40, abs=1e-9)
    assert 0 <= found["val_auc"] <= 1


def test_without_validation_bags_there_are_no_metrics(model):
    assert loop_of(model, None).validate() == {}


def test_adamw_decays_every_parameter(model):
    settings = quick(weight_decay=0.03, learning_rate=0.2)
    optimiser = build_optimiser(settings, model)
    assert isinstance(optimiser, torch.optim.AdamW)
    (group,) = optimiser.param_groups
    assert (group["weight_decay"], group["lr"]) == (0.03, 0.2)
    assert {id(p) for p in group["params"]} == {id(p) for p in model.parameters()}


# Callbacks


class StopAt(Callback):
    """Notes what it is told, and stops after an epoch."""

    def __init__(self, epoch=None):
        self.epoch = epoch
        self.seen = []

    def on_fit_start(self, progress):
        self.seen.append(("start", progress.epoch, dict(progress.metrics)))

    def on_epoch_end(self, progress):
        self.seen.append((progress.epoch, progress.best_epoch, dict(progress.metrics)))
        if progress.epoch == self.epoch:
            progress.stop()

    def on_fit_end(self, progress):
        self.seen.append(("end", progress.epoch, progress.folder))


def test_a_callback_sees_the_training(tmp_path, judge):
    judge([3.0, 1.0, 2.0])
    callback, seen = StopAt(), []
    judged(tmp_path, seen, callbacks=[callback])
    assert callback.seen == [
        ("start", -1, {}),
        (0, 0, seen[0]),
        (1, 1, seen[1]),
        (2, 1, seen[2]),
        ("end", 2, tmp_path),
    ]


def test_a_callback_stops_the_training_and_a_resume_does_not_continue_it(tmp_path):
    expected = weights_of(train(tmp_path, epochs=5, callbacks=[StopAt(1)]))
    assert epochs_of(tmp_path) == [0, 1]
    resumed = StopAt()
    found = train(tmp_path, epochs=5, resume=True, callbacks=[resumed])
    assert [name for name, *_ in resumed.seen] == ["start", "end"]
    assert same_weights(weights_of(found), expected)
    assert load_model(tmp_path)[1].details["epoch"] == 1


def test_an_epoch_after_which_a_callback_fails_can_be_resumed_from(tmp_path):
    class Fails(Callback):
        def on_epoch_end(self, progress):
            raise StopHere

    with pytest.raises(StopHere):
        train(tmp_path, callbacks=[Fails()])
    assert same_weights(weights_of(train(tmp_path, resume=True)), weights_of(train()))
    assert epochs_of(tmp_path) == [0, 1, 2]


def test_a_model_that_was_fitted_before_is_trained_in_training_mode():
    fitted = train(epochs=1)
    modes = []

    class Look(Callback):
        def on_epoch_end(self, progress):
            modes.append(progress.model.training)

    fit(toy_bags(), model=fitted, training=quick(), callbacks=[Look()])
    assert modes == [True] * 3
    assert not fitted.training
