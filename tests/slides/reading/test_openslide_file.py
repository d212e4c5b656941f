import numpy as np
import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

import openslide
import tifffile

from sgpmil.errors import SlideError
from sgpmil.slides.reading import openslide_file
from sgpmil.slides.reading.openslide_file import OpenSlideFile

from .slide_files import CMU, TCGA, difference, halves, needs_slides, picture, write_tiff


def direct(handle, x, y, width, height, level=0):
    """Read with OpenSlide itself, on white by Pillow."""
    from PIL import Image

    region = handle.read_region((x, y), level, (width, height))
    white = Image.new("RGBA", region.size, "white")
    return np.asarray(Image.alpha_composite(white, region).convert("RGB"))


@needs_slides
@pytest.mark.parametrize("path", [CMU, TCGA])
def test_windows_of_real_slides_are_those_of_openslide(path):
    with OpenSlideFile(path) as slide, openslide.OpenSlide(path) as handle:
        assert slide.size == handle.dimensions
        assert [(level.width, level.height) for level in slide.levels] == list(
            handle.level_dimensions
        )
        assert [level.downsample for level in slide.levels] == list(handle.level_downsamples)
        width, height = slide.size
        windows = [(0, 0, 300, 200), (517, 333, 256, 256), (-40, -30, 100, 100)]
        windows += [(width - 50, height - 60, 128, 128), (width + 10, 0, 20, 20)]
        for window in windows:
            for level in range(len(slide.levels)):
                expected = direct(handle, *window, level)
                np.testing.assert_array_equal(slide.read(*window, level=level), expected)


@needs_slides
def test_what_real_slides_say_of_themselves():
    with OpenSlideFile(CMU) as slide:
        assert (slide.mpp, slide.objective) == (0.499, 20.0)
        assert slide.slide_id == "cmu-1-small-region"
    with OpenSlideFile(TCGA) as slide:
        assert (slide.mpp, slide.objective) == (None, None)


@needs_slides
def test_a_patch_at_the_resolution_of_a_level_is_the_level_itself():
    with OpenSlideFile(TCGA) as slide, openslide.OpenSlide(TCGA) as handle:
        assert slide.levels[1].downsample == pytest.approx(2.0005, abs=1e-4)
        expected = direct(handle, 1000, 1400, 256, 256, 1)
        np.testing.assert_array_equal(slide.read_patch(1000, 1400, 512, 256), expected)


@needs_slides
def test_a_patch_from_a_finer_level_is_its_mean():
    with OpenSlideFile(CMU) as slide:
        fine = slide.read(600, 900, 512, 512).astype(float)
        mean = fine.reshape(256, 2, 256, 2, 3).mean(axis=(1, 3))
        assert np.abs(slide.read_patch(600, 900, 512, 256) - mean).max() <= 0.5


def test_transparency_is_composed_on_white(tmp_path):
    rgb, alpha = picture(100, 120), picture(100, 120, seed=1)[:, :, :1]
    rgba = np.dstack([rgb, alpha])
    path = write_tiff(tmp_path / "a.tif", [rgba], extrasamples=["unassalpha"])
    with OpenSlideFile(path) as slide:
        found = slide.read(0, 0, 120, 100)
    share = alpha / 255.0
    assert np.abs(found - (rgb * share + 255 * (1 - share))).max() <= 2.5


def test_the_background_colour_of_the_file(tmp_path, monkeypatch):
    path = write_tiff(tmp_path / "a.tif", [picture(64, 64)])
    stated = {"openslide.background-color": "E0d0C0"}
    monkeypatch.setattr(openslide.OpenSlide, "properties", stated)
    with OpenSlideFile(path) as slide:
        assert (slide.read(64, 64, 9, 9) == (0xE0, 0xD0, 0xC0)).all()


def test_print_resolution_is_no_pixel_size(tmp_path):
    for dpi, mpp in ((72, None), (300, None), (50800, 0.5)):
        path = write_tiff(
            tmp_path / f"{dpi}.tif",
            [picture(64, 64)],
            mpp=None,
            resolution=(dpi, dpi),
            resolutionunit="INCH",
        )
        with OpenSlideFile(path) as slide:
            assert slide.mpp == (mpp and pytest.approx(mpp))


def test_a_damaged_tile_spoils_itself_only(tmp_path):
    image = picture(256, 256)
    path = write_tiff(tmp_path / "a.tif", halves(image, 2), compression="jpeg")
    with tifffile.TiffFile(path) as tiff:
        offset, count = tiff.pages[0].dataoffsets[5], tiff.pages[0].databytecounts[5]
    content = bytearray(path.read_bytes())
    content[offset : offset + count] = bytes(count)
    path.write_bytes(content)
    with OpenSlideFile(path) as slide:
        before = slide.read(0, 0, 60, 60)
        assert difference(before, image[:60, :60]) < 60
        with pytest.raises(SlideError, match=r"at x = 70, y = 70 of level 0 in .*a\.tif.*damaged"):
            slide.read(70, 70, 10, 10)
        np.testing.assert_array_equal(slide.read(0, 0, 60, 60), before)
        with pytest.raises(SlideError, match="x = 64"):
            slide.read_patch(64, 64, 60, 50)


def test_tiles_of_absurd_size_are_refused(tmp_path, monkeypatch):
    path = write_tiff(tmp_path / "a.tif", [picture(100, 100)])
    monkeypatch.setattr(openslide_file, "MOST_TILE_PIXELS", 64 * 64 - 1)
    with pytest.raises(SlideError, match=r"Expected tiles of .* but got 64 × 64.*damaged"):
        OpenSlideFile(path)


def test_what_openslide_refuses(tmp_path):
    path = write_tiff(tmp_path / "a.tif", [picture(64, 64)], compression="jpeg2000")
    with pytest.raises(SlideError, match=r"a\.tif.* does not open .*compression: 34712"):
        OpenSlideFile(path)
