import json

import pytest
import torch

pytest.importorskip("timm", reason="pip install '.[encoders]'")

import huggingface_hub
import timm
from PIL import Image
from safetensors.torch import save_file

from sgpmil.errors import EncoderError, MissingPartError
from sgpmil.slides.encoders import load_encoder
from sgpmil.slides.encoders.encoder import require

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
    with pytest.raises(EncoderError, match=f"weights of '{repository}' .*give the file with `weig"):
        load_encoder(f"timm:{name}")


def test_without_the_part(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(MissingPartError, match=r"'timm' .*pip install .*\[encoders\]'"):
        load_encoder("timm:resnet18")
    with pytest.raises(MissingPartError, match="'nothing' to encode patches"):
        require("nothing")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingPartError, match=r"'transformers' .*pip install transformers\."):
        load_encoder("hf:owkin/phikon")


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


def saved(transformers, folder):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8,
    )  # fmt: skip
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return model


def test_a_local_snapshot(transformers, tmp_path):
    model = saved(transformers, tmp_path)
    encoder = load_encoder("hf:owner/model", weights=tmp_path)
    assert (encoder.name, encoder.dim, encoder.input_size) == ("hf-model", 32, 32)
    assert encoder.transform.mean == (0.5, 0.5, 0.5)
    patches = random_patches(3, 32)
    images = (patches.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    with torch.inference_mode():
        wanted = model(pixel_values=images).last_hidden_state[:, 0]
    torch.testing.assert_close(encoder.encode(patches), wanted, atol=1e-4, rtol=1e-3)


def test_what_is_no_model(transformers, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    with pytest.raises(EncoderError, match="Expected a model of transformers"):
        load_encoder("hf:owner/model", weights=tmp_path)


def models(transformers, which):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    if which == "dinov2":
        config = transformers.Dinov2Config(**sizes, image_size=56, patch_size=14)
        crop = {"height": 56, "width": 56}
        return (
            transformers.Dinov2Model(config),
            transformers.BitImageProcessor(size={"shortest_edge": 64}, crop_size=crop),
            lambda model, images: model(pixel_values=images).last_hidden_state[:, 0],
        )
    if which == "clip":
        tower = {**sizes, "intermediate_size": 32}
        config = transformers.CLIPConfig(
            text_config=tower,
            vision_config={**tower, "image_size": 32, "patch_size": 8},
            projection_dim=16,
        )
        crop = {"height": 32, "width": 32}
        return (
            transformers.CLIPModel(config),
            transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=crop),
            lambda model, images: model.visual_projection(
                model.vision_model(pixel_values=images).pooler_output
            ),
        )
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    return (
        transformers.ResNetModel(config),
        transformers.ConvNextImageProcessor(size={"shortest_edge": 64}),
        lambda model, images: model(pixel_values=images).last_hidden_state.mean((2, 3)),
    )


@pytest.mark.parametrize("which", ["dinov2", "clip", "resnet"])
def test_as_its_own_image_processor_does_it(transformers, tmp_path, which):
    from PIL import Image

    torch.manual_seed(0)
    model, processor, embed = models(transformers, which)
    model.eval().save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    patches = random_patches(2)
    pictures = [Image.fromarray(patch.numpy()) for patch in patches]
    images = processor(images=pictures, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        wanted = embed(model, images)
    found = load_encoder(f"hf:{tmp_path}").encode(patches)
    assert torch.nn.functional.cosine_similarity(found, wanted).min() > 0.99999
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=2e-3)


def test_an_unusual_image_processor_is_refused(transformers, tmp_path):
    saved(transformers, tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_normalize": False}))
    with pytest.raises(EncoderError, match="and to normalise, but it does something else"):
        load_encoder("hf:owner/model", weights=tmp_path)
