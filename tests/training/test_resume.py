import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import (
    CheckpointError,
)
from sgpmil.models.registry import list_models
from sgpmil.training.fit import fit
from sgpmil.training.settings import default_training
from tests.models.small import SMALL

from .conftest import (
    StopHere,
    epochs_of,
    file_weights,
    same_weights,
    stop_after,
    toy_bags,
    train,
    weights_of,
)


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


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_resumed_run_has_the_same_inducing_patches(tmp_path, stop):
    settings = {"preserved_dim": 2, "num_inducing": 6, "hidden_dims": (6, 4)}
    values = {"model_settings": settings, "epochs": 4, "warmup_epochs": 1}
    whole = train(tmp_path / "whole", **values)
    assert all(origin.row >= 0 for origin in whole.patches.origins)
    with pytest.raises(StopHere):
        train(tmp_path / "cut", on_epoch=stop_after(stop), **values)
    found = train(tmp_path / "cut", resume=True, **values)
    assert same_weights(weights_of(found), weights_of(whole))
    assert found.patches.origins == whole.patches.origins


@pytest.mark.parametrize(
    "values",
    [
        # 8 bags, 2 a pass: 4 passes, so 2 steps an epoch, and slow weights move in mid-epoch.
        {"optimiser": "lookahead-radam", "accumulate_steps": 2, "schedule": "constant"},
        {"optimiser": "lookahead-radam", "schedule": "exponential", "decay_epochs": 2},
        # The last step of an epoch is of one pass only.
        {"optimiser": "sgd", "accumulate_steps": 3, "schedule": "step", "decay_epochs": 2},
        {"optimiser": "adam", "betas": (0.5, 0.9), "schedule": "cosine"},
    ],
    ids=lambda values: f"{values['optimiser']}-{values['schedule']}",
)
def test_every_optimiser_and_schedule_resumes_exactly(tmp_path, values):
    expected = weights_of(train(epochs=6, **values))
    for epoch in (0, 3):
        with pytest.raises(StopHere):
            train(tmp_path, epochs=6, resume=epoch > 0, on_epoch=stop_after(epoch), **values)
    assert same_weights(weights_of(train(tmp_path, epochs=6, resume=True, **values)), expected)
    assert not same_weights(weights_of(train(epochs=6)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("model", list_models())
def test_every_model_resumes_exactly_with_its_own_training(tmp_path, model):
    bags = toy_bags(9)
    grid = [[(10 * i, 0) for i in range(bag.num_instances)] for bag in bags]
    bags = BagDataset.from_arrays(
        [bag.features for bag in bags], bags.labels, class_names=bags.class_names, coords=grid
    )
    options = {
        "val": bags,
        "model": model,
        "model_settings": SMALL.get(model, {}),
        "training": replace(default_training(model), epochs=4, device="cpu"),
    }
    expected = fit(bags, folder=tmp_path / "whole", **options)
    with pytest.raises(StopHere):
        fit(bags, folder=tmp_path / "cut", on_epoch=stop_after(1), **options)
    torch.manual_seed(99)
    found = fit(bags, folder=tmp_path / "cut", resume=True, **options)
    assert same_weights(weights_of(found), weights_of(expected))


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
    original, calls = Path.write_bytes, iter(range(100))

    def half_at_the_third(path, content):
        if path.name.startswith(".last.ckpt") and next(calls) == 2:
            original(path, bytes(content)[: len(content) // 2])
            raise StopHere
        return original(path, content)

    monkeypatch.setattr(Path, "write_bytes", half_at_the_third)
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
from pathlib import Path
original, calls = Path.write_bytes, iter(range(100))
def write(path, content):
    if path.name.startswith(".last.ckpt") and next(calls) == 2:
        original(path, bytes(content)[: len(content) // 2])
        os._exit(9)
    return original(path, content)
Path.write_bytes = write
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


def as_lightning(path):
    """Write a checkpoint in the form of the versions that trained with Lightning's trainer."""
    content = torch.load(path, weights_only=True)
    best = {"best_score": content["best_score"], "best_epoch": content["best_epoch"]}
    torch.save(
        {
            "epoch": content["epoch"],
            "global_step": 4,
            "pytorch-lightning_version": "2.6.6",
            "state_dict": {f"model.{name}": value for name, value in content["model"].items()},
            "loops": {},
            "callbacks": {"StopEarly": best, "KeepCheckpoints": best},
            "optimizer_states": [content["optimiser"]],
            "lr_schedulers": [],
            "gradient_scaler": content["gradient_scaler"],
        },
        path,
    )


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path):
    values = {"epochs": 5, "val": toy_bags(4, seed=1), "select": "best"}
    expected = weights_of(train(tmp_path / "whole", **values))
    with pytest.raises(StopHere):
        train(tmp_path / "cut", on_epoch=stop_after(2), **values)
    as_lightning(tmp_path / "cut" / "last.ckpt")
    assert same_weights(weights_of(train(tmp_path / "cut", resume=True, **values)), expected)
    assert epochs_of(tmp_path / "cut") == [0, 1, 2, 3, 4]


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path):
    path = cut_run(tmp_path)
    torch.save(torch.load(path, weights_only=True) | {"format_version": 99}, path)
    with pytest.raises(CheckpointError, match=r"format version 99.*Upgrade sgpmil"):
        train(tmp_path, resume=True)
