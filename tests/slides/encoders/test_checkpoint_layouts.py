import pytest
import torch

pytest.importorskip("timm", reason="pip install '.[encoders]'")

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.checkpoint_layouts import conch_weights, timm_names
from sgpmil.slides.encoders.published import build_trunk

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
        entry.load(tmp_path / "a.bin")


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
    network = entry.load(tmp_path).network.eval()
    images = entry.transform(random_patches(2))
    with torch.inference_mode():
        tokens = model(pixel_values=images).last_hidden_state
        found = network(images)
    wanted = tokens[:, 0]
    if name == "midnight12k":
        wanted = torch.cat([wanted, tokens[:, 1:].mean(1)], dim=1)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)


ENTRY = small_entry("conch_v1")


def published(weights):
    """The tower's weights as a checkpoint of both towers has them."""
    both = {f"visual.{name}": value for name, value in weights.items()}
    return {
        **both,
        "visual.proj_contrast": torch.zeros(512, 512),
        "visual.attn_pool_caption.query": torch.zeros(256, 768),
        "text.cls_emb": torch.zeros(768),
        "logit_scale": torch.tensor(1.0),
    }


def test_a_query_attends_to_the_tokens(tmp_path):
    weights = random_weights(ENTRY)
    torch.save({"state_dict": published(weights)}, tmp_path / "pytorch_model.bin")
    loaded = ENTRY.load(tmp_path)
    network = loaded.network.eval()
    images = ENTRY.transform(random_patches(2, 448))
    with torch.inference_mode():
        tokens = network.trunk.trunk.forward_features(images)
        found = network(images)
    at = {name.removeprefix("attn_pool_contrast."): value for name, value in weights.items()}
    norm = torch.nn.functional.layer_norm
    keys = norm(tokens, (48,), at["ln_k.weight"], at["ln_k.bias"])
    query = norm(at["query"], (512,), at["ln_q.weight"], at["ln_q.bias"])
    q_bias, k_bias, v_bias = at["attn.in_proj_bias"].chunk(3)
    q = (query @ at["attn.q_proj_weight"].T + q_bias).reshape(8, 64)
    k = (keys @ at["attn.k_proj_weight"].T + k_bias).unflatten(-1, (8, 64))
    v = (keys @ at["attn.v_proj_weight"].T + v_bias).unflatten(-1, (8, 64))
    weight = (torch.einsum("hd,bnhd->bhn", q, k) / 8).softmax(-1)
    mixed = torch.einsum("bhn,bnhd->bhd", weight, v).flatten(1)
    answer = mixed @ at["attn.out_proj.weight"].T + at["attn.out_proj.bias"]
    wanted = norm(answer, (512,), weights["ln_contrast.weight"], weights["ln_contrast.bias"])
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
    assert found.std() > 0.1


def test_positions_of_another_grid_are_interpolated():
    from timm.layers import resample_abs_pos_embed

    weights = random_weights(ENTRY)
    assert build_trunk(ENTRY).trunk.patch_embed.grid_size == (28, 28)
    positions = torch.randn(1, 1 + 14 * 14, 48, generator=torch.Generator().manual_seed(0))
    weights["trunk.pos_embed"] = positions
    found = conch_weights(published(weights), 28)["trunk.pos_embed"]
    wanted = resample_abs_pos_embed(positions, (28, 28), interpolation="bilinear", antialias=False)
    torch.testing.assert_close(found, wanted)
