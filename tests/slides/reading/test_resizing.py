import numpy as np
import pytest

pytest.importorskip("cv2", reason="pip install 'sgpmil[slides]'")

from PIL import Image

from sgpmil.slides.reading.resizing import resize


def overlap_weights(before, after):
    """The share of each result pixel that each source pixel covers: area averaging itself."""
    scale = before / after
    left = np.arange(after)[:, None] * scale
    source = np.arange(before)[None, :]
    covered = np.minimum(left + scale, source + 1) - np.maximum(left, source)
    return np.clip(covered, 0, None) / scale


def exact_mean(image, width, height):
    rows = overlap_weights(image.shape[0], height)
    columns = overlap_weights(image.shape[1], width)
    across = np.tensordot(image.astype(float), columns, (1, 1))  # rows, samples, columns
    return np.tensordot(rows, across, (1, 0)).transpose(0, 2, 1)


@pytest.mark.parametrize(
    ("before", "after"), [(512, 256), (768, 256), (1024, 256), (384, 256), (351, 256), (257, 256)]
)
def test_each_pixel_is_the_mean_over_its_area(rng, before, after):
    image = rng.integers(0, 256, (before, before, 3), dtype=np.uint8)
    exact = exact_mean(image, after, after)
    assert np.abs(resize(image, after, after) - exact).max() < 1


def test_sides_of_different_ratio(rng):
    image = rng.integers(0, 256, (90, 141, 3), dtype=np.uint8)
    found = resize(image, 100, 33)
    assert found.shape == (33, 100, 3)
    assert np.abs(found - exact_mean(image, 100, 33)).max() < 1


def test_why_not_the_box_of_pillow(rng):
    image = rng.integers(0, 256, (384, 384, 3), dtype=np.uint8)
    box = np.asarray(Image.fromarray(image).resize((256, 256), Image.Resampling.BOX))
    assert np.abs(box - exact_mean(image, 256, 256)).max() > 30


def test_an_image_of_the_right_size_is_left_alone(rng):
    image = rng.integers(0, 256, (7, 5, 3), dtype=np.uint8)
    assert resize(image, 5, 7) is image


def test_enlarging_by_rounding_is_smooth():
    ramp = np.repeat(np.arange(254, dtype=np.uint8)[None, :, None], 254, axis=0).repeat(3, axis=2)
    found = resize(ramp, 256, 256)[100, :, 0].astype(float)
    expected = (np.arange(256) + 0.5) * 254 / 256 - 0.5
    assert np.abs(found[1:-1] - expected[1:-1]).max() < 1
