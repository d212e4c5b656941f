import csv
import math

import pytest
import torch

from sgpmil.errors import RunFolderError
from sgpmil.models.checkpoint import load_model
from sgpmil.training import callbacks
from sgpmil.training.callbacks import AtomicCheckpointIO
from sgpmil.training.fit import fit
from sgpmil.training.schedule import learning_rate

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


def train(folder, seen=None, **values):
    resume, on_epoch = values.pop("resume", False), values.pop("on_epoch", None)
    return fit(
        toy_bags(6),
        val=toy_bags(4, seed=1),
        model_settings=TINY["sgpmil"],
        training=quick(**values),
        folder=folder,
        resume=resume,
        on_epoch=seen.append if seen is not None else on_epoch,
    )


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def epochs_of(folder):
    return [int(row["epoch"]) for row in rows(folder)]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"value": 1}, path)

    def half(content, place):
        place.write_bytes(b"half of a check")
        raise OSError("no space left on device")

    monkeypatch.setattr(callbacks.torch, "save", half)
    with pytest.raises(OSError, match="no space"):
        AtomicCheckpointIO().save_checkpoint({"value": 2}, path)
    assert torch.load(path, weights_only=True) == {"value": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_in_training_is_an_error_of_the_run_folder(tmp_path, monkeypatch):
    def full(content, place):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(callbacks.torch, "save", full)
    with pytest.raises(RunFolderError, match=f"write to {tmp_path}.*No space left"):
        train(tmp_path)


# Best at epoch 2; a patience of 2 ends after epoch 4.
LOSSES = [5.0, 4.0, 1.0, 3.0, 2.0, 0.5, 0.4]


@pytest.mark.parametrize(("patience", "last"), [(1, 3), (2, 4), (3, 6), (0, 6)])
def test_early_stopping_counts_the_epochs_since_the_best(tmp_path, judge, patience, last):
    judge(LOSSES)
    seen = []
    train(tmp_path, seen, epochs=7, patience=patience)
    assert [int(metrics["epoch"]) for metrics in seen] == list(range(last + 1))
    assert epochs_of(tmp_path) == list(range(last + 1))


@pytest.mark.parametrize(
    ("min_epochs", "last"),
    # A patience of 1 would stop after epoch 3; epoch 4 is no best one either, 5 and 6 are.
    [(0, 3), (4, 3), (5, 4), (6, 6), (100, 6)],
)
def test_early_stopping_waits_for_the_first_epochs(tmp_path, judge, min_epochs, last):
    judge(LOSSES)
    train(tmp_path, epochs=7, patience=1, min_epochs=min_epochs)
    assert epochs_of(tmp_path) == list(range(last + 1))


@pytest.mark.parametrize("stop", [0, 2, 3, 4])
def test_a_resume_stops_where_the_whole_run_stops(tmp_path, judge, stop):
    judge(LOSSES)
    values = {"epochs": 7, "patience": 1, "min_epochs": 5, "select": "best"}
    expected = weights_of(train(tmp_path / "whole", **values))
    with pytest.raises(StopHere):
        train(tmp_path / "cut", on_epoch=stop_after(stop), **values)
    found = train(tmp_path / "cut", resume=True, **values)
    assert epochs_of(tmp_path / "cut") == [0, 1, 2, 3, 4]
    assert same_weights(weights_of(found), expected)
    again = train(tmp_path / "cut", resume=True, **values)
    assert epochs_of(tmp_path / "cut") == [0, 1, 2, 3, 4]
    assert same_weights(weights_of(again), expected)


@pytest.mark.parametrize("monitor", ["balanced_accuracy", "auc"])
def test_of_accuracy_and_auc_the_largest_is_the_best(tmp_path, judge, monitor):
    judge([0.5, 0.9, 0.8, 0.9, 0.7], monitor)
    train(tmp_path, epochs=5, patience=3, monitor=monitor)
    # An equal value is no improvement.
    assert epochs_of(tmp_path) == [0, 1, 2, 3, 4]
    _, info = load_model(tmp_path / "best.safetensors")
    assert info.details == {"seed": 0, "epoch": 1}


def test_an_undefined_metric_is_never_the_best(tmp_path, judge):
    judge([math.nan, 2.0, math.nan])
    train(tmp_path, epochs=3, select="best")
    assert load_model(tmp_path / "best.safetensors")[1].details["epoch"] == 1


def test_a_resume_remembers_the_best_epoch_for_stopping_and_keeping(tmp_path, judge):
    judge(LOSSES)
    expected = train(tmp_path / "whole", epochs=7, patience=2, select="best")
    with pytest.raises(StopHere):
        train(tmp_path / "cut", epochs=7, patience=2, select="best", on_epoch=stop_after(2))
    found = train(tmp_path / "cut", epochs=7, patience=2, select="best", resume=True)
    assert epochs_of(tmp_path / "cut") == [0, 1, 2, 3, 4]
    assert same_weights(weights_of(found), weights_of(expected))
    assert load_model(tmp_path / "cut" / "best.safetensors")[1].details["epoch"] == 2


def test_a_run_that_stopped_early_is_not_trained_further_by_a_resume(tmp_path, judge):
    judge(LOSSES)
    expected = weights_of(train(tmp_path, epochs=7, patience=2))
    seen = []
    again = train(tmp_path, seen, epochs=7, patience=2, resume=True)
    assert seen == []
    assert same_weights(weights_of(again), expected)
    assert epochs_of(tmp_path) == [0, 1, 2, 3, 4]


def test_best_and_last_and_chosen_weights_are_those_of_their_epochs(tmp_path, judge, monkeypatch):
    judge([3.0, 1.0, 2.0])
    after = []
    original = callbacks.WriteMetrics.on_train_epoch_end

    def remember(self, trainer, pl_module):
        original(self, trainer, pl_module)
        after.append(weights_of(pl_module.model))

    monkeypatch.setattr(callbacks.WriteMetrics, "on_train_epoch_end", remember)
    best = train(tmp_path / "best", epochs=3, select="best")
    assert not same_weights(after[1], after[2])
    assert same_weights(file_weights(tmp_path / "best" / "best.safetensors"), after[1])
    assert same_weights(file_weights(tmp_path / "best" / "last.safetensors"), after[2])
    assert same_weights(file_weights(tmp_path / "best" / "checkpoint.safetensors"), after[1])
    assert same_weights(weights_of(best), after[1])
    last = train(tmp_path / "last", epochs=3, select="last")
    assert same_weights(file_weights(tmp_path / "last" / "best.safetensors"), after[1])
    assert same_weights(file_weights(tmp_path / "last" / "checkpoint.safetensors"), after[2])
    assert same_weights(weights_of(last), after[2])


def test_without_a_folder_the_best_weights_are_kept_in_memory(tmp_path, judge):
    judge([3.0, 1.0, 2.0])
    in_memory = train(None, epochs=3, select="best")
    train(tmp_path, epochs=3, select="last")
    assert same_weights(weights_of(in_memory), file_weights(tmp_path / "best.safetensors"))
    assert not same_weights(weights_of(in_memory), file_weights(tmp_path / "last.safetensors"))


def test_metrics_csv_holds_what_is_reported(tmp_path):
    seen = []
    train(tmp_path, seen, epochs=3)
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
    train(expected_folder, epochs=4)
    folder = tmp_path / "cut"
    with pytest.raises(StopHere):
        train(folder, epochs=4, on_epoch=stop_after(1))
    with (folder / "metrics.csv").open("a") as file:
        # As if the kill came after the row of epoch 2 and within that of epoch 3.
        file.write("2,0.1,0.1,0.1,0.1,0.1\r\n0")
    train(folder, epochs=4, resume=True)
    assert rows(folder) == rows(expected_folder)


def test_a_new_fit_in_the_same_folder_starts_the_curves_again(tmp_path):
    train(tmp_path, epochs=3)
    train(tmp_path, epochs=2)
    assert epochs_of(tmp_path) == [0, 1]
