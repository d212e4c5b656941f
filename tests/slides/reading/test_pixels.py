import numpy as np
import pytest
from PIL import Image

pytest.importorskip("cv2", reason="pip install '.[slides]'")

from sgpmil.slides.reading.pixels import Colours, clipped_window, resize, to_rgb

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


@pytest.mark.parametrize("x", [-30, -10, -3, 0, 4, 12, 15, 40])
@pytest.mark.parametrize("y", [-30, -3, 0, 5, 9, 40])
def test_as_if_the_image_had_a_white_frame(rng, x, y):
    image = rng.integers(0, 255, (10, 15, 3), dtype=np.uint8)
    framed = np.pad(image, ((60, 60), (60, 60), (0, 0)), constant_values=255)
    found = clipped_window(
        lambda left, top, w, h: image[top : top + h, left : left + w], (x, y, 7, 20), (15, 10)
    )
    np.testing.assert_array_equal(found, framed[y + 60 : y + 80, x + 60 : x + 67])


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
