import subprocess
import sys

import pytest
import torch

pytest.importorskip("timm", reason="pip install '.[encoders]'")
from safetensors.torch import save_file

from sgpmil.errors import EncoderError, SettingsError
from sgpmil.slides.encoders import find_entry, list_encoders, load_encoder, loading

from .stand_ins import random_patches, random_weights, small_entry

SMALL = [entry.name for entry in list_encoders() if entry.architecture.startswith("vit")]


@pytest.mark.parametrize("name", SMALL)
def test_local_weights(tmp_path, monkeypatch, name):
    entry = small_entry(name)
    weights = random_weights(entry)
    if entry.layout == "conch":
        weights = {f"visual.{key}": value for key, value in weights.items()}
    save_file(weights, tmp_path / "a.safetensors")
    torch.save({"model": weights}, tmp_path / "a.pth")
    monkeypatch.setattr(loading, "find_entry", lambda _: entry)
    encoder = load_encoder(name, weights=tmp_path / "a.safetensors")
    assert (encoder.name, encoder.dim) == (name, entry.dim)
    patches = random_patches(3)
    found = encoder.encode(patches)
    assert found.std(0).max() > 1e-3
    torch.testing.assert_close(encoder.encode(patches[:1]), found[:1], atol=1e-4, rtol=1e-3)
    again = load_encoder(name, weights=tmp_path / "a.pth")
    assert torch.equal(again.encode(patches), found)
    assert again.fingerprint == encoder.fingerprint


def test_a_whole_encoder_from_a_file(tmp_path):
    # The smallest of the pathology encoders, as it is.
    entry = find_entry("kaiko-vits16")
    save_file(random_weights(entry), tmp_path / "model.safetensors")
    encoder = load_encoder("Kaiko_ViTS16", weights=tmp_path)
    found = encoder.encode(random_patches(2))
    assert found.shape == (2, 384)
    with pytest.raises(EncoderError, match=r"kaiko-vitb16 \(vit_base_patch16_224\).*another shape"):
        load_encoder("kaiko-vitb16", weights=tmp_path)


def test_a_missing_block_is_refused(tmp_path):
    entry = small_entry("uni_v1")
    weights = {n: v for n, v in random_weights(entry).items() if not n.startswith("blocks.1.")}
    torch.save({**weights, "head.weight": torch.zeros(10, 48)}, tmp_path / "a.bin")
    with pytest.raises(EncoderError, match=r"14 are missing \(first: blocks.1.norm1.weight\)\."):
        entry.load(tmp_path / "a.bin")


def test_precision():
    encoder = load_encoder(precision="bfloat16")
    full = load_encoder()
    patches = random_patches(2)
    found, wanted = encoder.encode(patches), full.encode(patches)
    assert found.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(found.float(), wanted).min() > 0.98
    assert encoder.fingerprint != full.fingerprint
    assert full.precision == "float32"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["uni_v1", "uni_v2", "conch_v1", "virchow2", "resnet50"])
def test_on_a_gpu(tmp_path, monkeypatch, name):
    entry = find_entry(name) if name == "resnet50" else small_entry(name)
    weights = random_weights(entry)
    if entry.layout == "conch":
        weights = {f"visual.{key}": value for key, value in weights.items()}
    save_file(weights, tmp_path / "a.safetensors")
    monkeypatch.setattr(loading, "find_entry", lambda _: entry)
    on_gpu = load_encoder(name, weights=tmp_path / "a.safetensors", device="gpu")
    on_cpu = load_encoder(name, weights=tmp_path / "a.safetensors", device="cpu")
    assert on_gpu.precision == entry.precision
    patches = random_patches(4)
    found, wanted = on_gpu.encode(patches), on_cpu.encode(patches)
    assert found.device.type == "cpu"
    assert torch.nn.functional.cosine_similarity(found, wanted).min() > 0.99
    torch.testing.assert_close(
        on_gpu.transform(patches.cuda()).cpu(), on_cpu.transform(patches), atol=0.03, rtol=0
    )


def test_settings():
    for device in ("tpu-like", "cuda:99"):
        with pytest.raises(SettingsError, match=f"device.*'{device}'"):
            load_encoder(device=device)
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match="Expected a GPU for device 'gpu', but found none"):
            load_encoder(device="gpu")
    with pytest.raises(EncoderError, match="Expected the name of an encoder, but got 'nonsense'"):
        load_encoder("nonsense")


def test_importing_the_room_loads_nothing_of_it():
    code = (
        "import sys, sgpmil.slides.encoders as room; room.encoder_rows();"
        "heavy = {'timm', 'torchvision', 'transformers', 'huggingface_hub', 'onnxruntime',"
        "'efficientnet_lite_pytorch'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
