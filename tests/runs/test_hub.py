"""Models fetched from the hub and pushed to it; a stand-in takes the place of the network."""

import hashlib
import sys
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch

import sgpmil
from sgpmil.errors import CheckpointError, MissingPartError, SettingsError
from sgpmil.models import save_model
from sgpmil.report.export import ExportOptions, export_model
from sgpmil.runs.hub import is_hub_id


@pytest.fixture
def checkpoint(tmp_path):
    model = sgpmil.build_model("mean-pool", in_dim=3, num_classes=2, hidden_dim=2)
    return save_model(model, tmp_path / "model.safetensors", class_names=("no", "yes"))


class StandIn:
    """The part of `huggingface_hub.HfApi` that a push needs."""

    def __init__(self):
        self.repos, self.files = {}, {}

    def create_repo(self, repo_id, *, private, exist_ok):
        assert exist_ok
        self.repos.setdefault(repo_id, private)
        return f"https://hub/{repo_id}"

    def repo_info(self, repo_id):
        return SimpleNamespace(private=self.repos[repo_id])

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        assert commit_message
        self.files[repo_id] = {f.name: f.read_bytes() for f in folder_path.iterdir()}


@pytest.fixture
def hub(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: stand_in)
    return stand_in


def test_a_push_uploads_the_folder(hub, checkpoint, tmp_path):
    exported = export_model(
        ExportOptions(model=checkpoint, to=tmp_path / "m", push_to_hub="me/model", private=True)
    )
    assert exported.address == "https://hub/me/model"
    assert hub.repos == {"me/model": True}
    assert set(hub.files["me/model"]) == {
        "README.md",
        "config.json",
        "model.safetensors",
        "slides.json",
    }


def test_nothing_private_goes_to_a_public_place(hub, checkpoint, tmp_path):
    hub.repos["me/model"] = False
    with pytest.raises(SettingsError, match=r"it is public .* nothing was pushed"):
        export_model(
            ExportOptions(model=checkpoint, to=tmp_path / "m", push_to_hub="me/model", private=True)
        )
    assert hub.files == {}


def test_without_a_network_the_folder_stays(hub, checkpoint, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route to host.\nRequest 17")

    monkeypatch.setattr(hub, "upload_folder", fail)
    with pytest.raises(SettingsError, match=r"\(ConnectionError: no route to host\)") as caught:
        export_model(ExportOptions(model=checkpoint, to=tmp_path / "m", push_to_hub="me/model"))
    assert "The model is in" in str(caught.value)
    assert "Request 17" not in str(caught.value)
    assert len(sgpmil.load(tmp_path / "m")) == 1


def test_impossible_options_are_refused_before_anything_is_written(
    checkpoint, tmp_path, monkeypatch
):
    given = {"model": checkpoint, "to": tmp_path / "m"}
    with pytest.raises(SettingsError, match="`private` is about `push_to_hub`"):
        export_model(ExportOptions(**given, private=True))
    with pytest.raises(SettingsError, match=r"as USER/NAME, but got 'a b'"):
        export_model(ExportOptions(**given, push_to_hub="a b"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPartError, match=r"pip install .*\[export\]'"):
        export_model(ExportOptions(**given, push_to_hub="me/model"))
    with pytest.raises(MissingPartError, match=r"fetch 'me/model', which is no file"):
        sgpmil.load("me/model")
    assert not (tmp_path / "m").exists()


def test_a_model_of_the_cache_is_loaded_by_its_name(checkpoint, tmp_path, monkeypatch):
    """As huggingface_hub keeps it on the disk, without a network."""
    commit = hashlib.sha1(b"commit", usedforsecurity=False).hexdigest()
    repo = tmp_path / "cache" / "models--me--model"
    export_model(ExportOptions(model=checkpoint, to=repo / "snapshots" / commit))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found = huggingface_hub.snapshot_download  # whose default is the cache of the import
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *a, **k: found(*a, **k, cache_dir=tmp_path / "cache"),
    )
    model = sgpmil.load("me/model")
    assert model.source == "me/model"
    bag = sgpmil.Bag(features=torch.ones(2, 3), slide_id="a")
    expected = sgpmil.predict(sgpmil.load_model(checkpoint)[0], [bag], class_names=("no", "yes"))
    np.testing.assert_allclose(model.predict([bag]).probs, expected.probs)
    with pytest.raises(CheckpointError, match=r"Expected a model at 'me/other'.*token"):
        sgpmil.load("me/other")


def test_a_mistyped_path_does_not_ask_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("runs/a")
    (tmp_path / "runs").mkdir()
    assert not is_hub_id("runs/a")
    with pytest.raises(CheckpointError, match=r"exported folder at runs/a, but there is nothing"):
        sgpmil.load("runs/a")
