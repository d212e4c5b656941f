import pytest
import torch

pytest.importorskip("timm", reason="pip install 'sgpmil[encoders]'")

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.registered import load_registered
from sgpmil.slides.encoders.transformers_names import timm_names

from .stand_ins import random_patches, random_weights, small_entry

VIT = {
    "norm1": "layernorm_before",
    "attn.proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
DINOV2 = {
    "norm1": "norm1",
    "attn.proj": "attention.output.dense",
    "ls1": "layer_scale1",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "ls2": "layer_scale2",
}
SWIGLU = {**DINOV2, "mlp.fc1": "mlp.weights_in", "mlp.fc2": "mlp.weights_out"}


def as_transformers(weights, parts):
    """Timm's tensors under the names that transformers writes."""
    outside = {
        "cls_token": "embeddings.cls_token",
        "pos_embed": "embeddings.position_embeddings",
        "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
        "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
        "norm.weight": "layernorm.weight",
        "norm.bias": "layernorm.bias",
    }
    found = {}
    for name, value in weights.items():
        if name in outside:
            found[outside[name]] = value
            continue
        _, block, rest = name.split(".", 2)
        part, kind = rest.rsplit(".", 1)
        stem = f"encoder.layer.{block}"
        if part == "attn.qkv":
            for which, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                found[f"{stem}.attention.attention.{which}.{kind}"] = piece
        else:
            kind = "lambda1" if kind == "gamma" else kind
            found[f"{stem}.{parts[part]}.{kind}"] = value
    return found


@pytest.mark.parametrize(
    ("name", "parts"), [("phikon", VIT), ("phikon_v2", DINOV2), ("midnight12k", SWIGLU)]
)
def test_names_go_there_and_back(name, parts):
    weights = random_weights(small_entry(name))
    grid = 16 if name == "midnight12k" else 14
    found = timm_names(as_transformers(weights, parts), grid)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[key], weights[key]) for key in weights)
    assert timm_names(weights, grid).keys() == weights.keys()


def test_a_missing_matrix_is_refused(tmp_path):
    entry = small_entry("phikon")
    weights = as_transformers(random_weights(entry), VIT)
    del weights["encoder.layer.1.attention.attention.key.weight"]
    torch.save(weights, tmp_path / "a.bin")
    with pytest.raises(EncoderError, match=r"first: blocks.1.attn.qkv.weight is 96×48 instead of"):
        load_registered(entry, tmp_path / "a.bin")


@pytest.mark.parametrize("name", ["phikon", "phikon_v2", "midnight12k"])
def test_as_transformers_computes_it(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    if name == "phikon":
        config = transformers.ViTConfig(**sizes, intermediate_size=192, image_size=224)
        model = transformers.ViTModel(config, add_pooling_layer=False)
    else:
        # Midnight's positions are those of a larger image.
        config = transformers.Dinov2Config(
            **sizes,
            image_size=518 if name == "midnight12k" else 224,
            patch_size=14 if name == "midnight12k" else 16,
            use_swiglu_ffn=name == "midnight12k",
        )
        model = transformers.Dinov2Model(config)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(0.3 * torch.randn(value.shape))
    model.eval().save_pretrained(tmp_path)
    entry = small_entry(name)
    network = load_registered(entry, tmp_path).network.eval()
    images = entry.transform(random_patches(2))
    with torch.inference_mode():
        tokens = model(pixel_values=images).last_hidden_state
        found = network(images)
    wanted = tokens[:, 0]
    if name == "midnight12k":
        wanted = torch.cat([wanted, tokens[:, 1:].mean(1)], dim=1)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
