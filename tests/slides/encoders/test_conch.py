import pytest
import torch

pytest.importorskip("timm", reason="pip install 'sgpmil[encoders]'")

from sgpmil.slides.encoders.architectures import build_trunk
from sgpmil.slides.encoders.conch import conch_weights
from sgpmil.slides.encoders.registered import load_registered

from .stand_ins import random_patches, random_weights, small_entry

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
    loaded = load_registered(ENTRY, tmp_path)
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
