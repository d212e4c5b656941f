import numpy as np
import pytest
import torch

pytest.importorskip("timm", reason="pip install 'sgpmil[encoders]'")

from sgpmil.slides.encoders import list_encoders
from sgpmil.slides.encoders.transform import PatchTransform

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
