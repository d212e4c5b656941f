import numpy as np
import pytest
from PIL import Image

from sgpmil.slides.reading.colours import Colours, to_rgb

from .slide_files import difference


@pytest.fixture
def rgb(rng):
    return rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)


@pytest.fixture
def fourth(rng):
    return rng.integers(0, 256, (30, 40, 1), dtype=np.uint8)


def test_rgb_is_left_alone(rgb, fourth):
    np.testing.assert_array_equal(to_rgb(rgb, Colours("rgb")), rgb)
    found = to_rgb(np.dstack([rgb, fourth]), Colours("rgb"))  # a sample of no known meaning
    np.testing.assert_array_equal(found, rgb)
    assert found.flags.c_contiguous


def test_grey(fourth):
    found = to_rgb(fourth, Colours("grey"))
    np.testing.assert_array_equal(found, np.repeat(fourth, 3, axis=2))
    inverted = to_rgb(fourth, Colours("inverted grey"))
    np.testing.assert_array_equal(inverted, 255 - np.repeat(fourth, 3, axis=2))


def test_cmyk_as_pillow_has_it(rgb, fourth):
    cmyk = np.dstack([rgb, fourth])
    expected = np.asarray(Image.fromarray(cmyk, "CMYK").convert("RGB"))
    assert difference(to_rgb(cmyk, Colours("cmyk")), expected) <= 1


def test_palette(rng):
    palette = rng.integers(0, 256, (16, 3), dtype=np.uint8)
    index = rng.integers(0, 20, (5, 6, 1), dtype=np.uint8)
    found = to_rgb(index, Colours("palette", 4, palette=palette))
    np.testing.assert_array_equal(found, palette[np.minimum(index[:, :, 0], 15)])


@pytest.mark.parametrize("bits", [1, 4, 12, 16])
def test_the_whole_range_of_bits_becomes_8(bits):
    values = np.arange(2**bits, dtype=np.uint16)[None, :, None]
    found = to_rgb(values, Colours("grey", bits))[0, :, 0]
    expected = values[0, :, 0] * 255.0 / (2**bits - 1)
    assert np.abs(found - expected).max() <= 0.5
    assert (found[0], found[-1]) == (0, 255)


def test_brighter_than_the_bits_said_is_white():
    values = np.array([[[4095], [4096], [65535]]], dtype=np.uint16)
    assert (to_rgb(values, Colours("grey", 12)) == 255).all()


def test_bilevel():
    assert to_rgb(np.array([[[True], [False]]]), Colours("grey", 1))[0, :, 1].tolist() == [255, 0]


def test_straight_alpha_as_pillow_composes(rgb, fourth):
    rgba = np.dstack([rgb, fourth])
    white = Image.new("RGBA", (40, 30), "white")
    expected = Image.alpha_composite(white, Image.fromarray(rgba, "RGBA")).convert("RGB")
    found = to_rgb(rgba, Colours("rgb", alpha="straight"))
    assert difference(found, np.asarray(expected)) <= 1


def test_premultiplied_alpha(rgb, fourth):
    opacity = fourth / 255.0
    stored = np.round(rgb * opacity).astype(np.uint8)
    found = to_rgb(np.dstack([stored, fourth]), Colours("rgb", alpha="premultiplied"))
    assert np.abs(found - (rgb * opacity + 255 * (1 - opacity))).max() <= 1


def test_alpha_of_grey_in_16_bits(rng):
    grey, alpha = rng.integers(0, 65536, (2, 9, 9), dtype=np.uint16)
    colours = Colours("grey", 16, "straight", alpha_sample=1)
    found = to_rgb(np.dstack([grey, alpha]), colours)[:, :, 0]
    share = alpha / 65535
    assert np.abs(found - (grey / 257 * share + 255 * (1 - share))).max() <= 1.5
