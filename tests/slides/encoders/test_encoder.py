import numpy as np
import pytest
import torch
from torch import nn

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.encoder import NetworkEncoder
from sgpmil.slides.encoders.transform import PatchTransform

from .stand_ins import random_patches

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
    found = encoder(output="float16").encode(torch.zeros(0, 8, 8, 3, dtype=torch.uint8))
    assert found.shape == (0, 5)
    assert found.dtype == torch.float16


def test_half_precision_is_close_and_used():
    patches = random_patches(4, 8)
    full = encoder().encode(patches)
    half = encoder(precision="bfloat16").encode(patches)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=0.02, atol=0.1)
    assert not torch.equal(half, full)
    torch.testing.assert_close(encoder(output="float16").encode(patches), full.half())


@pytest.mark.parametrize(
    ("network", "more", "words"),
    [
        (Linear(float("nan")), {}, "'toy', but some are NaN or infinite in float32"),
        (Linear(1e6), {"output": "float16"}, "stored as float16"),
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
