import pickle
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")
pytest.importorskip("imagecodecs", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

from sgpmil.errors import SlideError
from sgpmil.slides.reading import slide as slide_module
from sgpmil.slides.reading.openslide_file import OpenSlideFile
from sgpmil.slides.reading.slide import cut_short, level_downsample, reason, unreadable_pixels
from sgpmil.slides.reading.tiff_file import TiffSlide

from .slide_files import CMU, TCGA, difference, halves, needs_slides, picture, write_tiff
from .test_pixels import exact_mean


def test_reasons_are_a_few_words():
    assert reason(OSError("short read.\nmore")) == "short read"
    assert reason(ValueError()) == "its structure is damaged"
    assert reason(AttributeError("'NoneType' has no attribute 'x'")) == "its structure is damaged"


def test_errors_travel_between_processes():
    for error in (cut_short(2000, 10, "'a'"), unreadable_pixels(Path("a"), 1, 2, 0, OSError("b"))):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(copy), str(copy)) == (type(error), str(error))


BACKENDS = [OpenSlideFile, TiffSlide]


def plain(value, side):
    return np.full((side, side, 3), value, dtype=np.uint8)


@pytest.fixture
def coloured(tmp_path):
    """A slide whose levels differ in colour, so that it shows which one was read."""
    sides = [(10, 512), (60, 256), (110, 128), (160, 32)]
    return write_tiff(tmp_path / "a.tif", [plain(*level) for level in sides])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("side", "size", "colour"),
    [
        (64, 64, 10),
        (64, 40, 10),
        (128, 65, 10),
        (128, 64, 60),
        (200, 101, 60),
        (198, 101, 10),
        (128, 63, 60),
        (160, 50, 60),
        (256, 64, 110),
        (256, 20, 110),
        (256, 16, 160),
        (256, 4, 160),
        (254, 256, 10),
    ],
)
def test_the_nearest_level_that_is_fine_enough(coloured, backend, side, size, colour):
    with backend(coloured) as slide:
        found = slide.read_patch(64, 128, side, size)
    assert found.shape == (size, size, 3)
    assert (found == colour).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_patch_lies_where_it_is_asked_for(tmp_path, backend):
    # Brightness is the position, so the mean of a patch is the centre of the area it shows.
    ramp = np.broadcast_to(np.arange(1024) / 1024 * 250, (1024, 1024))
    image = np.round(np.stack([ramp, ramp.T, 0 * ramp], axis=2)).astype(np.uint8)
    path = write_tiff(tmp_path / "a.tif", halves(image, 4))
    with backend(path) as slide:
        for side, size in ((256, 256), (256, 128), (256, 86), (384, 50), (512, 64), (512, 43)):
            for x, y in ((0, 0), (16, 400), (301, 203), (333, 77), (512, 512)):
                mean = slide.read_patch(x, y, side, size).reshape(-1, 3).mean(axis=0)
                centre = (np.array([x, y]) + side / 2 - 0.5) / 1024 * 250
                # Half a pixel of the level that is read, and rounding to grey levels.
                level = slide.levels[slide.level_for(side / size)].downsample
                assert np.abs(mean[:2] - centre).max() < 0.25 * level / 2 + 0.3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_patch_is_exact_where_nothing_is_resized(tmp_path, backend):
    pyramid = halves(picture(300, 400), 3)
    path = write_tiff(tmp_path / "a.tif", pyramid)
    with backend(path) as slide:
        np.testing.assert_array_equal(slide.read_patch(33, 21, 64, 64), pyramid[0][21:85, 33:97])
        np.testing.assert_array_equal(slide.read_patch(36, 20, 128, 32), pyramid[2][5:37, 9:41])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_patch_is_the_mean_of_the_finer_level(tmp_path, backend):
    image = picture(300, 400)
    path = write_tiff(tmp_path / "a.tif", [image])
    with backend(path) as slide:
        exact = exact_mean(image[21:171, 33:183], 64, 64)
        assert np.abs(slide.read_patch(33, 21, 150, 64) - exact).max() < 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_patch_over_the_edge_is_white_there(tmp_path, backend):
    path = write_tiff(tmp_path / "a.tif", halves(plain(0, 128), 2))
    with backend(path) as slide:
        found = slide.read_patch(96, -32, 64, 32)
    assert (found[16:, :16] == 0).all()
    assert (found[:16] == 255).all()
    assert (found[:, 16:] == 255).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("longest", "level"), [(400, 0), (300, 0), (200, 1), (150, 1), (100, 2), (60, 2), (1, 2)]
)
def test_a_thumbnail_is_the_mean_of_the_nearest_level(tmp_path, backend, longest, level):
    pyramid = halves(picture(300, 400), 3)
    path = write_tiff(tmp_path / "a.tif", pyramid)
    with backend(path) as slide:
        found = slide.thumbnail(longest)
    height, width = max(1, round(300 * longest / 400)), longest
    assert found.shape == (height, width, 3)
    assert np.abs(found - exact_mean(pyramid[level], width, height)).max() < 1


def test_a_thumbnail_is_never_larger_than_the_slide(tmp_path):
    image = picture(30, 40)
    path = write_tiff(tmp_path / "a.tif", [image])
    with TiffSlide(path) as slide:
        np.testing.assert_array_equal(slide.thumbnail(1000), image)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_thumbnail_made_of_blocks_has_no_seams(tmp_path, backend, monkeypatch):
    image = picture(331, 457)
    tiled = write_tiff(tmp_path / "a.tif", [image])
    with backend(tiled) as slide:
        at_once = slide.thumbnail(100)
        monkeypatch.setattr(slide_module, "_BLOCK", 50)
        assert difference(slide.thumbnail(100), at_once) <= 8  # a shift of half a pixel of 4.6
        mean = np.abs(slide.thumbnail(100) - at_once.astype(float)).mean()
        assert mean < 1


def test_a_striped_file_is_read_in_full_rows(tmp_path, monkeypatch):
    image = picture(331, 457)
    path = write_tiff(tmp_path / "a.tif", [image], tile=None, rowsperstrip=8)
    windows = []
    read = TiffSlide._read
    monkeypatch.setattr(
        TiffSlide, "_read", lambda self, *window: windows.append(window) or read(self, *window)
    )
    monkeypatch.setattr(slide_module, "_BLOCK", 150)
    with TiffSlide(path) as slide:
        found = slide.thumbnail(100)
    assert len(windows) > 3
    assert {(x, width) for x, _, width, _, _ in windows} == {(0, 457)}
    assert sum(height for _, _, _, height, _ in windows) == 331
    assert np.abs(found - exact_mean(image, 100, 72)).max() <= 8


@needs_slides
@pytest.mark.parametrize("path", [CMU, TCGA])
def test_thumbnails_of_real_slides(path):
    with OpenSlideFile(path) as slide:
        found = slide.thumbnail(300)
        whole = slide.read(0, 0, *slide.size)
    height, width = found.shape[:2]
    assert max(height, width) == 300
    exact = exact_mean(whole, width, height)
    assert np.abs(found - exact).mean() < 1.5
    assert np.corrcoef(found.ravel(), exact.ravel())[0, 1] > 0.998


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda slide: slide.read(0, 0, 0, 5), "at least 1 × 1 px, but got 0 × 5"),
        (lambda slide: slide.read(0, 0, 5, -1), "but got 5 × -1"),
        (lambda slide: slide.read(0, 0, 5, 5, level=1), "from 0 to 0, but got 1"),
        (lambda slide: slide.read(0, 0, 5, 5, level=-1), "from 0 to 0, but got -1"),
        (lambda slide: slide.read_patch(0, 0, 0, 5), "side of 0 level-0 px"),
        (lambda slide: slide.read_patch(0, 0, 5, 0), "as 0 px"),
        (lambda slide: slide.thumbnail(0), "but got 0"),
    ],
)
def test_impossible_windows(tmp_path, call, words):
    path = write_tiff(tmp_path / "a.tif", [picture(64, 64)])
    with TiffSlide(path) as slide, pytest.raises(SlideError, match=words):
        call(slide)


@pytest.mark.parametrize(
    ("full", "reduced", "expected"),
    [
        ((46000, 32914), (11500, 8228), 4.0),
        ((46000, 32914), (2875, 2057), 16.0),
        ((150001, 20003), (37500, 5000), 4.0),
        ((150001, 20003), (37501, 5001), 4.0),
        ((900, 700), (300, 233), 3.0),
        ((900, 700), (29, 22), 32.0),
        ((300, 200), (300, 200), 1.0),
        ((300, 200), (120, 80), 2.5),
    ],
)
def test_downsamples_are_whole_where_sizes_were_rounded(full, reduced, expected):
    assert level_downsample(full, reduced) == pytest.approx(expected)
