import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

pytest.importorskip("huggingface_hub", reason="pip install '.[encoders]'")

import huggingface_hub

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.checkpoints import download_weights, load_weights, read_weights


def net(width=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))


WEIGHTS = {name: value.detach().clone() for name, value in net().state_dict().items()}


def same(found):
    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


@pytest.mark.parametrize(
    "wrapped",
    [
        WEIGHTS,
        {"state_dict": WEIGHTS, "epoch": 3},
        {"model": {"state_dict": WEIGHTS}},
        {"module." + name: value for name, value in WEIGHTS.items()},
        {"state_dict": {"model._orig_mod." + name: value for name, value in WEIGHTS.items()}},
        {
            "teacher": {
                **{"backbone." + name: value for name, value in WEIGHTS.items()},
                "dino_head.mlp.0.weight": torch.zeros(2),
            }
        },
    ],
    ids=["plain", "nested", "twice", "parallel", "compiled", "teacher"],
)
def test_wrappers_are_taken_off(tmp_path, wrapped):
    torch.save(wrapped, tmp_path / "a.pth")
    same(read_weights(tmp_path / "a.pth"))


def test_safetensors_shards_and_folders(tmp_path):
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    same(read_weights(tmp_path / "a.safetensors"))
    same(read_weights(tmp_path))
    shards = tmp_path / "shards"
    shards.mkdir()
    names = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(WEIGHTS)}
    for file in set(names.values()):
        save_file({n: WEIGHTS[n] for n in names if names[n] == file}, shards / file)
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    same(read_weights(shards))
    torch.save(WEIGHTS, tmp_path / "b.pt")
    with pytest.raises(EncoderError, match=r"Expected one weight file .*but found 2"):
        read_weights(tmp_path)
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    same(read_weights(tmp_path))


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit",))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 cut off"])
def test_damaged(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(EncoderError, match=r"nothing but tensors, but got .*a\.(pt|safetensors)\)"):
        read_weights(path)


def test_what_is_no_checkpoint(tmp_path):
    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(EncoderError, match=r"evil\.pt.*save the model's state_dict"):
        read_weights(tmp_path / "evil.pt")
    torch.save(net(), tmp_path / "whole.pt")
    with pytest.raises(EncoderError, match="nothing but tensors"):
        read_weights(tmp_path / "whole.pt")
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    with pytest.raises(EncoderError, match=r"Expected tensors by name .*but found none"):
        read_weights(tmp_path / "none.pt")
    with pytest.raises(EncoderError, match="no such file"):
        read_weights(tmp_path / "absent.pt")


def test_weights_are_loaded_as_float32_onto_a_network_without_memory():
    with torch.device("meta"):
        network = net()
    given = {
        name: value.half() if value.is_floating_point() else value
        for name, value in WEIGHTS.items()
    }
    load_weights(
        network, {**given, "head.weight": torch.zeros(2), "mask_token": torch.zeros(1)}, ""
    )
    found = network.state_dict()
    assert found["0.weight"].dtype == torch.float32
    assert torch.equal(found["0.weight"], WEIGHTS["0.weight"].half().float())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"0.weight": None},
            r"the net in 'a', but of its 7 tensors 1 are missing \(first: 0.weight",
        ),
        ({"extra": torch.zeros(1)}, r"1 are unknown \(first: extra\)"),
        ({"0.bias": torch.zeros(4)}, r"of another shape \(first: 0.bias is 4 instead of 3\)"),
        ({"1.num_batches_tracked": None, "2.x": torch.zeros(1)}, "1 are missing .*, 1 are unknown"),
    ],
)
def test_weights_of_something_else(changed, words):
    weights = {n: v for n, v in {**WEIGHTS, **changed}.items() if v is not None}
    with pytest.raises(EncoderError, match=words):
        load_weights(net(), weights, "the net in 'a'")


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
        r"https://huggingface.co/MahmoodLab/UNI .*'hf auth login'.*`weights`\.$",
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
