import json
import os
from dataclasses import asdict

import gpytorch.kernels as gpk
import pytest
import torch

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import CheckpointError, SettingsError
from sgpmil.models import checkpoint
from sgpmil.models.checkpoint import load_model, save_model
from sgpmil.models.prevalence import ClassShares
from sgpmil.models.registry import build_model, list_models

from .small import random_bags, small_model

CLASSES = ("normal", "tumour")


@pytest.fixture
def saved(tmp_path):
    model = small_model("sgpmil")
    path = save_model(model, tmp_path / "checkpoint.safetensors", class_names=CLASSES)
    return model, path


def edit(path, **changes):
    description = path.with_suffix(".json")
    content = json.loads(description.read_text())
    description.write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list_models())
def test_everything_comes_back(tmp_path, name, dtype):
    model = small_model(name, dtype=dtype)
    details = {"encoder": "uni", "epoch": 3}
    path = save_model(model, tmp_path / "a.safetensors", class_names=CLASSES, details=details)
    loaded, info = load_model(path)
    batch = BagBatch.pack(random_bags(dtype=dtype))
    assert torch.equal(loaded(batch).logits, model(batch).logits)
    assert loaded.settings == model.settings
    assert loaded.name == info.model == name
    assert not loaded.training
    assert info.class_names == CLASSES
    assert (info.in_dim, info.details) == (6, details)


def test_folder_json_and_weights_name_the_same(saved):
    _, path = saved
    for name in (path, path.with_suffix(".json"), path.parent, str(path)):
        assert load_model(name)[1].model == "sgpmil"
    with pytest.raises(CheckpointError, match=r"\.safetensors\) or the folder"):
        load_model(path.with_suffix(".ckpt"))


def test_settings_can_be_replaced(saved):
    model, path = saved
    loaded, _ = load_model(path, num_samples=9)
    assert asdict(loaded.settings) == {**asdict(model.settings), "num_samples": 9}
    with pytest.raises(SettingsError, match="Did you mean 'num_samples'"):
        load_model(path, num_sample=9)


def test_the_users_kernel_must_be_passed_again(tmp_path):
    kernel = gpk.ScaleKernel(gpk.RQKernel())
    model = small_model("sgpmil", kernel=kernel)
    with torch.no_grad():
        model.gp.kernel.raw_outputscale.fill_(1.5)
    path = save_model(model, tmp_path / "a.safetensors", class_names=CLASSES)
    with pytest.raises(CheckpointError, match=r"custom:ScaleKernel.*kernel=\.\.\."):
        load_model(path)
    loaded, _ = load_model(path, kernel=kernel)
    batch = BagBatch.pack(random_bags())
    assert torch.equal(loaded(batch).logits, model(batch).logits)
    assert kernel.raw_outputscale.item() == 0  # the user's own stays as it was
    with pytest.raises(CheckpointError, match="could not load them"):
        load_model(path, kernel="rbf")


@pytest.mark.parametrize("length", [0, 5, 200, -1])
def test_truncated_weights(saved, length):
    _, path = saved
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"weights of a sgpmil .* could not load them"):
        load_model(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_missing_file(saved, suffix):
    _, path = saved
    path.with_suffix(suffix).unlink()
    with pytest.raises(CheckpointError, match=rf"checkpoint\{suffix}"):
        load_model(path)


def test_an_empty_folder(tmp_path):
    with pytest.raises(CheckpointError, match="but found none"):
        load_model(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", "{}", '{"format_version": null}'])
def test_a_damaged_description(saved, text):
    _, path = saved
    path.with_suffix(".json").write_text(text)
    with pytest.raises(CheckpointError, match="description of a checkpoint"):
        load_model(path)


@pytest.mark.parametrize("change", [{"in_dim": None}, {"unknown": 1}, {"class_names": 3}])
def test_a_description_with_other_fields(saved, change):
    _, path = saved
    content = json.loads(path.with_suffix(".json").read_text())
    content.pop("settings")
    path.with_suffix(".json").write_text(json.dumps({**content, **change}))
    with pytest.raises(CheckpointError, match="could not read it"):
        load_model(path)


def test_weights_of_another_shape_are_named(saved):
    _, path = saved
    edit(path, in_dim=7)
    with pytest.raises(CheckpointError, match=r"size mismatch for (standardise|mlp|preserved)"):
        load_model(path)


def test_weights_of_another_model(saved):
    _, path = saved
    edit(path, model="abmil", settings={})
    with pytest.raises(CheckpointError, match=r"weights of a abmil.*(Missing|Unexpected) key"):
        load_model(path)


def test_a_newer_format_asks_for_an_upgrade(saved):
    _, path = saved
    edit(path, format_version=checkpoint.FORMAT_VERSION + 1)
    with pytest.raises(CheckpointError, match=r"format version 4, .* Upgrade sgpmil"):
        load_model(path)


@pytest.mark.parametrize("moment", ["before the rename", "while writing"])
def test_a_kill_while_saving_leaves_the_old_one(saved, monkeypatch, moment):
    model, path = saved
    before = model(batch := BagBatch.pack(random_bags())).logits
    with torch.no_grad():
        model.classifier.bias.add_(1)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "while writing":
            patch.setattr(checkpoint, "save", die)
        else:
            patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            save_model(model, path, class_names=CLASSES)
    assert torch.equal(load_model(path)[0](batch).logits, before)
    assert {file.name for file in path.parent.iterdir()} == {
        "checkpoint.safetensors",
        "checkpoint.json",
    }


def test_a_first_save_that_is_killed_is_no_checkpoint(tmp_path, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write_text", die)
    with pytest.raises(KeyboardInterrupt):
        save_model(small_model("abmil"), tmp_path / "a.safetensors", class_names=CLASSES)
    with pytest.raises(CheckpointError, match="but found none"):
        load_model(tmp_path / "a.safetensors")


def test_details_that_are_not_json_leave_the_old_one(saved):
    model, path = saved
    before = path.read_bytes()
    with torch.no_grad():
        model.classifier.bias.add_(1)
    with pytest.raises(TypeError):
        save_model(model, path, class_names=CLASSES, details={"what": object()})
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Could not write the checkpoint"):
        save_model(small_model("abmil"), tmp_path / "file" / "a.safetensors", class_names=CLASSES)


@pytest.mark.parametrize("name", ["mixmil", "abmil"])
def test_double_precision_stays(name, tmp_path):
    settings = {"projection_dim": 0} if name == "mixmil" else {}  # then it has no layer's weight
    model = small_model(name, dtype=torch.float64, **settings)
    save_model(model, tmp_path / "checkpoint.safetensors", class_names=("a", "b"))
    loaded, _ = load_model(tmp_path)
    assert next(loaded.parameters()).dtype == torch.float64


def test_the_target_of_a_model_is_kept_and_checkpoints_of_the_first_version_open(tmp_path):
    target = ClassTarget(("normal", "tumor", "stroma"))
    model = build_model("mean-pool", in_dim=4, target=target)
    path = save_model(model, tmp_path / "a.safetensors")
    again, info = load_model(path)
    assert again.target == info.target == target
    description = path.with_suffix(".json")
    content = json.loads(description.read_text())
    assert content.pop("target") == {"kind": "class", "names": list(target.names)}
    old = content | {"format_version": 1, "class_names": list(target.names)}
    description.write_text(json.dumps(old))
    old_model, old_info = load_model(path)
    assert old_info.target == target
    assert old_info.class_names == target.names
    for name, value in again.state_dict().items():
        assert torch.equal(old_model.state_dict()[name], value)


def test_class_shares_are_kept_and_a_checkpoint_without_them_predicts_as_before(tmp_path):
    model = small_model("sgpmil")
    model.shares = ClassShares.of_training([0, 0, 0, 1], model.target, "training", balanced=True)
    path = save_model(model, tmp_path / "a.safetensors")
    again, info = load_model(path)
    assert again.shares == info.shares == model.shares
    logits = torch.tensor([[[0.3, -0.2]]])
    odds = torch.tensor([3.0, 1.0]) * logits.exp()
    assert torch.allclose(again.corrected(logits).softmax(-1), odds / odds.sum())
    description = path.with_suffix(".json")
    content = json.loads(description.read_text())
    assert content.pop("shares")["training"] == [0.75, 0.25]
    description.write_text(json.dumps(content | {"format_version": 2}))
    old, _ = load_model(path)
    assert old.shares is None
    assert torch.equal(old.corrected(logits), logits)
