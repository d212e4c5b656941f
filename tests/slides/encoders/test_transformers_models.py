import json

import pytest
import torch

from sgpmil.errors import EncoderError, MissingPartError
from sgpmil.slides.encoders import load_encoder

from .stand_ins import random_patches


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
