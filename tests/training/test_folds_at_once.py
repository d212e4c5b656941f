import os
import signal
import warnings
from typing import get_type_hints

import numpy as np
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.splits import Fold
from sgpmil.cli.train_command import train
from sgpmil.errors import SettingsError, TrainingError
from sgpmil.gpu.resident import on_device
from sgpmil.models.registry import build_model
from sgpmil.runs.run import Run
from sgpmil.training import cross_validation, folds_at_once
from sgpmil.training.cross_validation import cross_validate
from sgpmil.training.folds_at_once import default_folds_at_once
from sgpmil.training.lightning_module import LightningModel

from .conftest import TINY, file_weights, files_under, quick, same_weights, toy_bags

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def folds_of(count, bags):
    """Give each fold another few bags to test, and the next ones to validate with."""
    names = bags.slide_ids
    folds = []
    for k in range(count):
        test, val = names[2 * k : 2 * k + 2], names[2 * k + 2 : 2 * k + 4]
        train = tuple(name for name in names if name not in (*test, *val))
        folds.append(Fold(str(k), train, val, test))
    return folds


def run_all(run, *, bags=None, count=4, at_once, resume=False, **values):
    bags = toy_bags(14) if bags is None else bags
    return cross_validate(
        bags,
        folds_of(count, bags),
        model_settings=TINY["sgpmil"],
        training=quick(**values),
        run=run,
        resume=resume,
        folds_at_once=at_once,
        progress=False,
    )


def same_runs(one, other):
    for mine, theirs in zip(one.predictions, other.predictions, strict=True):
        assert mine.slide_ids == theirs.slide_ids
        np.testing.assert_array_equal(mine.probs, theirs.probs)
        np.testing.assert_array_equal(mine.std, theirs.std)
    for fold in Run.open(one.folder).folds:
        for name in ("best.safetensors", "last.safetensors"):
            paths = [result.folder / f"fold-{fold}" / name for result in (one, other)]
            assert same_weights(*(file_weights(path) for path in paths))
        curves = [result.folder / f"fold-{fold}" / "metrics.csv" for result in (one, other)]
        assert curves[0].read_text() == curves[1].read_text()


def test_folds_at_once_are_what_they_are_one_after_another(tmp_path):
    alone = run_all(tmp_path / "alone", at_once=1, select="best")
    filters, handler = list(warnings.filters), signal.getsignal(signal.SIGTERM)
    together = run_all(tmp_path / "together", at_once=3, select="best")
    same_runs(alone, together)
    assert set(files_under(alone.folder)) == set(files_under(together.folder))
    # What belongs to the whole process is as it was.
    assert warnings.filters == filters
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not torch.are_deterministic_algorithms_enabled()


def test_who_stops_folds_at_once_can_go_on_with_all(tmp_path, monkeypatch):
    whole = run_all(tmp_path / "whole", at_once=1, epochs=12)
    fit = cross_validation.fit
    asked = []

    def interrupted(*args, **values):
        report = values["on_epoch"]

        def on_epoch(metrics):
            report(metrics)
            if metrics["epoch"] == 1 and not asked:
                asked.append(1)
                os.kill(os.getpid(), signal.SIGINT)

        return fit(*args, **(values | {"on_epoch": on_epoch}))

    monkeypatch.setattr(cross_validation, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all(tmp_path / "stopped", at_once=3, epochs=12)
    monkeypatch.undo()
    kept = Run.open(tmp_path / "stopped")
    assert not any(kept.folds[fold].is_done for fold in kept.folds)
    assert [(kept.folds[f].path / "last.ckpt").exists() for f in kept.folds][:2] == [True, True]
    same_runs(whole, run_all(tmp_path / "stopped", at_once=3, resume=True, epochs=12))


def test_others_have_their_turn_while_a_fold_is_tested(monkeypatch):
    calls = []
    monkeypatch.setattr(cross_validation, "give_way", lambda: calls.append(1))
    result = run_all(None, at_once=2)
    assert len(calls) == sum(len(table.slide_ids) for table in result.predictions)


def test_a_fold_that_fails_ends_the_others_and_loses_nothing(tmp_path, monkeypatch):
    whole = run_all(tmp_path / "whole", at_once=1)
    fit = cross_validation.fit
    calls = iter(range(100))

    def failing(*args, **values):
        if next(calls) == 2:
            raise TrainingError("The third fails.")
        return fit(*args, **values)

    monkeypatch.setattr(cross_validation, "fit", failing)
    with pytest.raises(TrainingError, match="The third fails"):
        run_all(tmp_path / "failed", at_once=2)
    monkeypatch.undo()
    same_runs(whole, run_all(tmp_path / "failed", at_once=2, resume=True))


@pytest.mark.parametrize("number", [0, 9])
def test_too_few_or_too_many_are_refused(number):
    with pytest.raises(SettingsError, match=f"from 1 to 8, but got {number}"):
        run_all(None, at_once=number)


def test_one_at_a_time_where_steps_are_not_recorded():
    bags = toy_bags()
    model = build_model("sgpmil", in_dim=4, num_classes=2, **TINY["sgpmil"])
    assert default_folds_at_once(model, quick(), bags, CPU) == 1
    assert default_folds_at_once(model, quick(), on_device(bags, CPU), CPU) == 1


def test_memory_limits_how_many(monkeypatch):
    monkeypatch.setattr(folds_at_once, "can_record", lambda *_: True)
    bags = toy_bags()
    model = build_model("sgpmil", in_dim=4, num_classes=2, **TINY["sgpmil"])
    rows = 256  # of the largest step, filled up
    # Inputs; hidden units, inputs of the process and classes; none of them is a small part.
    width = 4 + (8 + 4 + 2)
    room = rows * width * folds_at_once._VALUE_BYTES
    room += model.num_parameters() * folds_at_once._PARAMETER_BYTES

    def found(free):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
        return default_folds_at_once(model, quick(bags_per_step=2), bags, torch.device("cuda"))

    assert found(100 * room) == folds_at_once.MOST_AT_ONCE
    assert found(3 * room) == 3
    assert found(3 * room - 1) == 2
    assert found(room - 1) == 1
    monkeypatch.setattr(folds_at_once, "MOST_ROWS", 9)  # the two largest bags have ten instances
    assert found(100 * room) == 1


def test_the_command_takes_as_many_as_the_library():
    (option,) = get_type_hints(train, include_extras=True)["folds_at_once"].__metadata__
    assert option.max == folds_at_once.MOST_AT_ONCE


def test_a_gpu_without_memory_is_told_of_in_a_sentence(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee ...")

    monkeypatch.setattr(LightningModel, "training_step", full)
    with pytest.raises(TrainingError, match=r"2 GiB.*--folds-at-once 1") as caught:
        run_all(None, at_once=1)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_on_a_gpu_folds_at_once_are_what_they_are_one_after_another(
    tmp_path, precision, recorded, monkeypatch
):
    if not recorded:
        monkeypatch.setattr("sgpmil.training.lightning_module.recorded_steps", lambda *_: None)
    rng = np.random.default_rng(0)
    sizes = rng.integers(100, 900, 16)
    features = [rng.normal(i % 2, 1, (n, 12)).astype(np.float32) for i, n in enumerate(sizes)]
    bags = BagDataset.from_arrays(features, [i % 2 for i in range(16)])
    settings = {"bags": bags, "count": 5, "precision": precision, "device": "gpu", "epochs": 5}
    alone = run_all(tmp_path / "alone", at_once=1, **settings)
    same_runs(alone, run_all(tmp_path / "together", at_once=4, **settings))
    same_runs(alone, run_all(tmp_path / "again", at_once=2, **settings))
