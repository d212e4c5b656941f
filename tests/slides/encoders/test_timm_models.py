import json

import pytest
import torch

pytest.importorskip("timm", reason="pip install 'sgpmil[encoders]'")

import huggingface_hub
import timm
from PIL import Image
from safetensors.torch import save_file

from sgpmil.errors import EncoderError, MissingPartError
from sgpmil.slides.encoders import load_encoder
from sgpmil.slides.encoders.packages import require

from .stand_ins import random_patches


@pytest.fixture
def model():
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=10).eval()


def test_local_weights_and_the_model_s_own_transform(tmp_path, model):
    from timm.data import create_transform, resolve_model_data_config

    save_file(model.state_dict(), tmp_path / "a.safetensors")
    encoder = load_encoder("timm:test_resnet", weights=tmp_path / "a.safetensors")
    assert encoder.name == "timm-test_resnet"
    patches = random_patches(2)
    steps = create_transform(**resolve_model_data_config(model), is_training=False)
    images = torch.stack([steps(Image.fromarray(patch.numpy())) for patch in patches])
    with torch.inference_mode():
        wanted = model.forward_head(model.forward_features(images), pre_logits=True)
    assert encoder.dim == wanted.shape[1]
    found = encoder.encode(patches)
    assert torch.nn.functional.cosine_similarity(found, wanted).min() > 0.9999
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)


def test_a_snapshot_of_the_hub_gives_the_architecture(tmp_path, model):
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {
        "architecture": "test_resnet",
        "num_classes": 10,
        "pretrained_cfg": {"mean": [0.5] * 3},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    encoder = load_encoder("timm:hf-hub:someone/model", weights=tmp_path)
    assert encoder.transform.mean == (0.5, 0.5, 0.5)
    other = load_encoder("timm:test_resnet", weights=tmp_path / "model.safetensors")
    assert torch.equal(
        other.network(torch.ones(1, 3, 160, 160)), encoder.network(torch.ones(1, 3, 160, 160))
    )
    with pytest.raises(EncoderError, match=r"Expected a folder with config\.json"):
        load_encoder("timm:hf-hub:someone/model", weights=tmp_path / "model.safetensors")


def test_weights_of_another_model(tmp_path, model):
    torch.save(model.state_dict(), tmp_path / "a.pt")
    with pytest.raises(EncoderError, match=r"weights of 'timm:test_vit' in .*are missing"):
        load_encoder("timm:test_vit", weights=tmp_path / "a.pt")


def test_no_such_model():
    with pytest.raises(EncoderError, match="has none of the name 'resnet49'"):
        load_encoder("timm:resnet49")


@pytest.mark.parametrize(
    ("name", "repository"),
    [("resnet18.a1_in1k", "timm/resnet18.a1_in1k"), ("hf-hub:a/b", "a/b")],
)
def test_without_network(monkeypatch, tmp_path, name, repository):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        EncoderError, match=f"weights of '{repository}' .*give the file with --weig"
    ):
        load_encoder(f"timm:{name}")


def test_without_the_part(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(MissingPartError, match=r"'timm' .*pip install 'sgpmil\[encoders\]'"):
        load_encoder("timm:resnet18")
    with pytest.raises(MissingPartError, match="'nothing' to encode patches"):
        require("nothing")
