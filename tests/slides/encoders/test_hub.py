import pytest
import torch

pytest.importorskip("huggingface_hub", reason="pip install 'sgpmil[encoders]'")

import huggingface_hub

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.hub import download_weights


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache of the hub, in a folder of its own, without network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def put(cache, repository, name, content=b"weights"):
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    (snapshot / name).write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_from_the_cache(cache, name):
    put(cache, "MahmoodLab/UNI", name)
    found = download_weights("MahmoodLab/UNI")
    assert found.name == name
    assert found.read_bytes() == b"weights"


def test_not_in_the_cache(cache):
    with pytest.raises(
        EncoderError,
        match=r"weights of 'MahmoodLab/UNI' .*Accept the licence at "
        r"https://huggingface.co/MahmoodLab/UNI .*'hf auth login'.*--weights\.$",
    ):
        download_weights("MahmoodLab/UNI")


def failing(monkeypatch, answers):
    calls = []

    def download(repository, name, *, local_files_only):
        calls.append((name, local_files_only))
        raise answers[local_files_only]

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return calls


def test_without_network_the_hub_is_asked_once(monkeypatch):
    absent = huggingface_hub.errors.LocalEntryNotFoundError("no connection")
    calls = failing(monkeypatch, {True: absent, False: absent})
    with pytest.raises(EncoderError, match="LocalEntryNotFoundError: no connection"):
        download_weights("a/b")
    assert [from_cache for _, from_cache in calls] == [True, True, False]


def test_a_licence_that_is_not_accepted(monkeypatch):
    absent = huggingface_hub.errors.LocalEntryNotFoundError("not here")
    gated = huggingface_hub.errors.GatedRepoError.__new__(huggingface_hub.errors.GatedRepoError)
    gated.args = ("Access to model a/b is\nrestricted",)
    calls = failing(monkeypatch, {True: absent, False: gated})
    with pytest.raises(EncoderError, match=r"GatedRepoError: .*Accept the licence"):
        download_weights("a/b")
    assert len(calls) == 3


def test_a_known_encoder_from_the_cache(cache, monkeypatch):
    pytest.importorskip("timm")
    from sgpmil.slides.encoders import loading

    from .stand_ins import random_patches, random_weights, small_entry

    entry = small_entry("virchow2")
    weights = random_weights(entry)
    put(cache, entry.repository, "pytorch_model.bin")
    torch.save(weights, download_weights(entry.repository))
    monkeypatch.setattr(loading, "find_entry", lambda name: entry)
    encoder = loading.load_encoder("virchow2")
    assert encoder.encode(random_patches(2)).shape == (2, 96)
    put(cache, "a/b", "model.safetensors")
    local = loading.load_encoder("virchow2", weights=download_weights(entry.repository))
    assert local.fingerprint == encoder.fingerprint
