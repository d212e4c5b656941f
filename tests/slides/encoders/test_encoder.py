import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("timm", reason="pip install '.[encoders]'")

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders import list_encoders
from sgpmil.slides.encoders.encoder import NetworkEncoder, PatchTransform, fingerprint

from .stand_ins import random_patches


def by_pillow(patches, transform):
    from PIL import Image
    from torchvision import transforms as tv

    mode = getattr(tv.InterpolationMode, transform.interpolation.upper())
    steps = tv.Compose(
        [
            tv.Resize(transform.resize or transform.size, interpolation=mode),
            tv.CenterCrop(transform.size),
            tv.ToTensor(),
            tv.Normalize(transform.mean, transform.std),
        ]
    )
    return torch.stack([steps(Image.fromarray(patch.numpy())) for patch in patches])


@pytest.mark.parametrize("side", [48, 256, 301, 512])
@pytest.mark.parametrize("entry", list_encoders()[:8], ids=lambda entry: entry.name)
def test_as_pillow_does_it(entry, side):
    patches = random_patches(2, side)
    ours, theirs = entry.transform(patches), by_pillow(patches, entry.transform)
    levels = (ours - theirs).abs() * torch.tensor(entry.transform.std).view(3, 1, 1) * 255
    # Pillow's weights are integers: where ours end halfway between two grey levels (often at
    # 256 to 224 px), it may round to the other one.
    assert levels.max() < 2.01
    assert levels.mean() < 0.08


def test_a_patch_of_the_right_size_is_only_normalised():
    patches = random_patches(3, 32)
    transform = PatchTransform(32, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    wanted = (patches.numpy() / 255 - [0.1, 0.2, 0.3]) / [0.4, 0.5, 0.6]
    np.testing.assert_allclose(transform(patches).permute(0, 2, 3, 1), wanted, atol=1e-6)


def test_the_centre_is_cut_out():
    patches = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    patches[0, 2:6, 2:6] = 255
    patches[0, 2, 2] = 0
    found = PatchTransform(4, resize=8, mean=(0.0,) * 3, std=(1.0,) * 3)(patches)
    assert found[0, 0, 0, 0] == 0
    assert found.sum() == 3 * 15


def test_cubic_interpolation_does_not_overshoot():
    patches = torch.zeros(1, 16, 16, 3, dtype=torch.uint8)
    patches[:, :, 8:] = 255
    found = PatchTransform(40, mean=(0.0,) * 3, std=(1.0,) * 3, interpolation="bicubic")(patches)
    assert found.min() == 0
    assert found.max() == 1


@pytest.mark.parametrize("wrong", [{"resize": 100}, {"size": 0}, {"std": (1.0, 0.0, 1.0)}])
def test_impossible(wrong):
    with pytest.raises(ValueError, match=r"does not fit|positive"):
        PatchTransform(**{"size": 224, **wrong})


WEIGHTS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(2, dtype=torch.int64)}


def test_what_is_hashed():
    digest = hashlib.sha256(b"recipe")
    digest.update(b"\na torch.int64 ()\n" + (2).to_bytes(8, "little"))
    digest.update(b"\nb torch.float32 (2, 3)\n" + WEIGHTS["b"].numpy().tobytes())
    assert fingerprint(WEIGHTS, "recipe") == digest.hexdigest()


def test_order_and_memory_layout_do_not_matter():
    other = {"a": WEIGHTS["a"], "b": WEIGHTS["b"].t().contiguous().t()}
    assert fingerprint(other, "") == fingerprint(WEIGHTS, "")


@pytest.mark.parametrize(
    "other",
    [
        {**WEIGHTS, "b": WEIGHTS["b"] + torch.tensor([0, 0, 1e-6])},
        {**WEIGHTS, "b": WEIGHTS["b"].reshape(3, 2)},
        {**WEIGHTS, "b": WEIGHTS["b"].bfloat16()},
        {"a": WEIGHTS["a"], "c": WEIGHTS["b"]},
        {"b": WEIGHTS["b"]},
    ],
    ids=["a bit", "shape", "type", "name", "missing"],
)
def test_any_change_shows(other):
    assert fingerprint(other, "") != fingerprint(WEIGHTS, "")
    assert fingerprint(WEIGHTS, "other") != fingerprint(WEIGHTS, "")


def test_same_in_another_process():
    code = (
        "import torch; from sgpmil.slides.encoders.encoder import fingerprint;"
        "print(fingerprint({'b': torch.arange(6.).reshape(2, 3), 'a': torch.tensor(2)}, 'r'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(WEIGHTS, "r")


CPU = torch.device("cpu")
PLAIN = PatchTransform(8, mean=(0.0,) * 3, std=(1.0,) * 3)


class Linear(nn.Module):
    """Fixed weights, with dropout that must be off."""

    def __init__(self, scale=1.0):
        super().__init__()
        source = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(scale * torch.randn(5, 192, generator=source))
        self.drop = nn.Dropout(0.5)

    def forward(self, images):
        return nn.functional.linear(self.drop(images.flatten(1)), self.weight)


def encoder(network=None, dim=5, **more):
    return NetworkEncoder("toy", network or Linear(), PLAIN, dim=dim, device=CPU, **more)


def test_embeddings_are_what_the_network_gives():
    patches = random_patches(7, 8)
    weight = Linear().weight.detach().numpy()
    wanted = (patches.numpy().transpose(0, 3, 1, 2).reshape(7, -1) / 255) @ weight.T
    found = encoder().encode(patches)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert found.dtype == torch.float32
    assert torch.equal(encoder().encode(patches), found)
    found += 1  # ordinary memory, not that of inference mode


def test_rows_do_not_depend_on_their_batch():
    patches = random_patches(7, 12)
    whole = encoder().encode(patches)
    parts = torch.cat([encoder().encode(part) for part in patches.split([4, 2, 1])])
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)


def test_empty_batch():
    found = encoder().encode(torch.zeros(0, 8, 8, 3, dtype=torch.uint8))
    assert found.shape == (0, 5)
    assert found.dtype == torch.float32


def test_half_precision_is_close_and_used():
    patches = random_patches(4, 8)
    full = encoder().encode(patches)
    half = encoder(precision="bfloat16").encode(patches)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=0.02, atol=0.1)
    assert not torch.equal(half, full)


@pytest.mark.parametrize(
    ("network", "more", "words"),
    [
        (Linear(float("nan")), {}, "'toy', but some are NaN or infinite in float32"),
        (Linear(1e38), {}, "NaN or infinite in float32"),
        (lambda x: x, {}, r"give 2 embeddings of length 5, but got \(2, 3, 8, 8\)"),
        (lambda x: [x], {}, "but got list"),
    ],
    ids=["NaN", "overflow", "not pooled", "not a tensor"],
)
def test_what_cannot_be_stored_is_refused(network, more, words):
    with pytest.raises(EncoderError, match=words):
        encoder(network, **more).encode(random_patches(2, 8))


def test_patches_must_be_square():
    with pytest.raises(EncoderError, match=r"Expected square patches .*'toy', but got 9×8 px"):
        encoder().encode(torch.zeros(1, 8, 9, 3, dtype=torch.uint8))


def test_fingerprint_knows_transform_precision_and_weights():
    known = {
        encoder().fingerprint,
        encoder(Linear(2.0)).fingerprint,
        encoder(precision="bfloat16").fingerprint,
        encoder(recipe="other").fingerprint,
        NetworkEncoder("toy", Linear(), PatchTransform(8), dim=5, device=CPU).fingerprint,
    }
    assert len(known) == 5
    assert encoder().fingerprint in known
