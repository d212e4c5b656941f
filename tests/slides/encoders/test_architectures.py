from dataclasses import replace

import pytest
import torch

pytest.importorskip("timm", reason="pip install 'sgpmil[encoders]'")

from sgpmil.slides.encoders.architectures import Pooled, build_trunk
from sgpmil.slides.encoders.checkpoints import load_weights
from sgpmil.slides.encoders.registry import find_entry

from .stand_ins import random_patches, random_weights, small_entry


def network(entry, weights):
    trunk = build_trunk(entry)
    load_weights(trunk, weights, entry.name)
    return Pooled(trunk.eval(), entry)


def tokens_by_hand(weights, images, patch, heads, *, registers, swiglu, pos_on_registers):
    """A vision transformer written out, from its published description."""
    at = weights.__getitem__
    num = len(images)
    width = at("cls_token").shape[-1]
    x = torch.nn.functional.conv2d(
        images, at("patch_embed.proj.weight"), at("patch_embed.proj.bias"), stride=patch
    )
    x = x.flatten(2).transpose(1, 2)
    prefix = [at("cls_token").expand(num, -1, -1)]
    if registers:
        prefix.append(at("reg_token").expand(num, -1, -1))
    if pos_on_registers:
        x = torch.cat([*prefix, x], dim=1) + at("pos_embed")
    else:
        x = torch.cat([*prefix, x + at("pos_embed")], dim=1)

    def norm(x, name):
        return torch.nn.functional.layer_norm(
            x, (width,), at(f"{name}.weight"), at(f"{name}.bias"), eps=1e-6
        )

    def linear(x, name):
        return x @ at(f"{name}.weight").T + at(f"{name}.bias")

    for block in range(2):
        name = f"blocks.{block}"
        q, k, v = linear(norm(x, f"{name}.norm1"), f"{name}.attn.qkv").chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        weight = (q @ k.transpose(-1, -2) / (width // heads) ** 0.5).softmax(-1)
        mixed = (weight @ v).transpose(1, 2).flatten(2)
        x = x + at(f"{name}.ls1.gamma") * linear(mixed, f"{name}.attn.proj")
        hidden = linear(norm(x, f"{name}.norm2"), f"{name}.mlp.fc1")
        if swiglu:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = gate * torch.sigmoid(gate) * value
        else:
            hidden = torch.nn.functional.gelu(hidden)
        x = x + at(f"{name}.ls2.gamma") * linear(hidden, f"{name}.mlp.fc2")
    return norm(x, "norm")


@pytest.mark.parametrize(
    ("name", "patch", "registers", "swiglu", "pos_on_registers", "with_mean"),
    [
        ("uni_v1", 16, 0, False, True, False),
        ("uni_v2", 14, 8, True, False, False),
        ("virchow", 14, 0, True, True, True),
        ("virchow2", 14, 4, True, True, True),
        ("gigapath", 16, 0, True, True, False),
        ("hoptimus1", 14, 4, True, False, False),
        ("midnight12k", 14, 0, True, True, True),
    ],
)
def test_transformers_by_hand(name, patch, registers, swiglu, pos_on_registers, with_mean):
    entry = small_entry(name)
    weights = random_weights(entry)
    images = entry.transform(random_patches(2))
    tokens = tokens_by_hand(
        weights,
        images,
        patch,
        4,
        registers=registers,
        swiglu=swiglu,
        pos_on_registers=pos_on_registers,
    )
    num_patches = (224 // patch) ** 2
    assert tokens.shape[1] == 1 + registers + num_patches
    wanted = tokens[:, 0]
    if with_mean:
        wanted = torch.cat([wanted, tokens[:, -num_patches:].mean(1)], dim=1)
    with torch.inference_mode():
        found = network(entry, weights)(images)
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-3)


def test_resnet50_stops_after_its_third_layer():
    from torchvision.models import resnet50

    entry = find_entry("resnet50")
    weights = random_weights(entry)
    other = resnet50(weights=None).eval()
    other.load_state_dict({**other.state_dict(), **weights})
    images = entry.transform(random_patches(1))
    with torch.inference_mode():
        x = other.maxpool(other.relu(other.bn1(other.conv1(images))))
        wanted = other.layer3(other.layer2(other.layer1(x))).mean((2, 3))
        found = network(entry, weights)(images)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


def test_positions_of_a_larger_grid_serve_a_smaller_image():
    # kaiko's ViT-L learned its positions at 518 px, and is fed 224 px.
    entry = small_entry("kaiko-vitl14")
    weights = random_weights(entry)
    assert weights["pos_embed"].shape == (1, 37 * 37, 48)
    found = network(entry, weights)(entry.transform(random_patches(2)))
    square = weights["pos_embed"].reshape(1, 37, 37, 48).permute(0, 3, 1, 2)
    small = torch.nn.functional.interpolate(square, (16, 16), mode="bicubic", antialias=True)
    fixed = replace(entry, arguments={**entry.arguments, "img_size": 224})
    fitted = {**weights, "pos_embed": small.flatten(2).transpose(1, 2)}
    wanted = network(fixed, fitted)(entry.transform(random_patches(2)))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
