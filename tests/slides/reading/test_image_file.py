import warnings

import numpy as np
import pytest

pytest.importorskip("cv2", reason="pip install '.[slides]'")
from PIL import Image

from sgpmil.errors import SlideError
from sgpmil.slides.reading import image_file
from sgpmil.slides.reading.image_file import ImageSlide
from sgpmil.slides.reading.slide import Level

from .slide_files import picture


@pytest.fixture
def image():
    return picture(90, 130)


def whole(path):
    with ImageSlide(path) as slide:
        return slide.read(0, 0, *slide.size)


def test_a_png(tmp_path, image):
    Image.fromarray(image).save(tmp_path / "a.b.png")
    with ImageSlide(tmp_path / "a.b.png") as slide:
        assert slide.levels == (Level(130, 90, 1.0),)
        assert slide.slide_id == "a.b"
        assert (slide.mpp, slide.objective) == (None, None)
        np.testing.assert_array_equal(slide.read(20, 30, 40, 50), image[30:80, 20:60])
        beyond = slide.read(125, -5, 10, 10)
        np.testing.assert_array_equal(beyond[5:, :5], image[:5, 125:])
        assert (beyond[:5] == 255).all()
        assert (beyond[:, 5:] == 255).all()


def test_what_is_read_is_the_callers_own(tmp_path, image):
    Image.fromarray(image).save(tmp_path / "a.png")
    with ImageSlide(tmp_path / "a.png") as slide:
        slide.read(0, 0, 130, 90)[:] = 0
        np.testing.assert_array_equal(slide.read(0, 0, 130, 90), image)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpeg_as_pillow_reads_it(tmp_path, image, mode):
    path = tmp_path / "a.jpg"
    Image.fromarray(image).convert(mode).save(path, quality=95)
    with Image.open(path) as pillow:
        assert pillow.mode == mode
        expected = np.asarray(pillow.convert("RGB"))
    np.testing.assert_array_equal(whole(path), expected)
    assert np.abs(expected.mean() - image.mean()) < 3  # CMYK is not read inverted


def test_transparency_is_composed_on_white(tmp_path, image):
    alpha = picture(90, 130, seed=1)[:, :, :1]
    Image.fromarray(np.dstack([image, alpha])).save(tmp_path / "a.png")
    share = alpha / 255.0
    assert np.abs(whole(tmp_path / "a.png") - (image * share + 255 * (1 - share))).max() <= 0.5
    grey = np.dstack([image[:, :, :1], alpha])
    Image.fromarray(grey, "LA").save(tmp_path / "b.png")
    expected = image[:, :, :1] * share + 255 * (1 - share)
    assert np.abs(whole(tmp_path / "b.png") - expected).max() <= 0.5


def test_a_transparent_colour_is_white(tmp_path):
    index = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4) % 2, "P")
    index.putpalette([10, 20, 30, 200, 100, 50])
    index.save(tmp_path / "a.png", transparency=1)
    found = whole(tmp_path / "a.png")
    assert (found[:, ::2] == (10, 20, 30)).all()
    assert (found[:, 1::2] == 255).all()


def test_grey_of_16_bits(tmp_path, image):
    grey = image[:, :, 0].astype(np.uint16) * 257
    Image.fromarray(grey).save(tmp_path / "a.png")
    np.testing.assert_array_equal(whole(tmp_path / "a.png"), image[:, :, :1].repeat(3, axis=2))


@pytest.mark.parametrize(("dpi", "mpp"), [(72, None), (96, None), (300, None), (50800, 0.5)])
def test_only_a_microscopes_resolution_is_a_pixel_size(tmp_path, image, dpi, mpp):
    Image.fromarray(image).save(tmp_path / "a.png", dpi=(dpi, dpi))
    with ImageSlide(tmp_path / "a.png") as slide:
        assert slide.mpp == (mpp and pytest.approx(mpp, rel=1e-4))


def test_too_many_pixels(tmp_path, image, monkeypatch):
    path = tmp_path / "a.png"
    Image.fromarray(image).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 130 * 90 - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(whole(path), image)  # Pillow would warn, the limit is ours
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 130 * 90 // 3)
    with pytest.raises(SlideError, match=r"at most 134 million pixels, .*a\.png.*tiled TIFF"):
        ImageSlide(path)
    monkeypatch.undo()
    monkeypatch.setattr(image_file, "MOST_PIXELS", 130 * 90 - 1)
    with pytest.raises(SlideError, match=r"but got 130 × 90 in .*a\.png"):
        ImageSlide(path)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_damaged(tmp_path, image, suffix):
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(image).save(path)
    content = path.read_bytes()
    for length in (12, 40, len(content) // 2):
        path.write_bytes(content[:length])
        with pytest.raises(SlideError, match=rf"PNG or JPEG in .*a\.{suffix}.* cannot be read"):
            ImageSlide(path)
