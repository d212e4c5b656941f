import os
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
import tifffile
from PIL import Image

from sgpmil.errors import SlideError
from sgpmil.runs.slide_picture import SlideSources
from sgpmil.slides.reading.pixels import resize
from sgpmil.viewer.slide_tiles import OpenSlides, jpeg
from tests.slides.extraction.drawn_files import HEIGHT, MPP, WIDTH, write_slide


@pytest.fixture
def slides(tmp_path):
    files, pixels = {}, {}
    for number in range(3):
        files[f"s{number}"] = tmp_path / f"s{number}.tiff"
        pixels[f"s{number}"] = write_slide(files[f"s{number}"], number)
    found = OpenSlides(SlideSources(files), tmp_path)
    yield found, pixels
    found.close()


def test_the_finest_tiles_are_the_pixels_of_the_slide(slides):
    opened, pixels = slides
    frame = opened.frame("s1")
    assert (frame.width, frame.height, frame.mpp) == (WIDTH, HEIGHT, MPP)
    last = frame.pyramid.last_level
    for column, row in ((0, 0), (3, 2), (8, 6)):
        x, y, width, height = frame.pyramid.box(last, column, row)
        found = opened.tile("s1", last, column, row)
        np.testing.assert_array_equal(found, pixels["s1"][y : y + height, x : x + width])


@pytest.mark.parametrize("level", [8, 9, 10])
def test_coarser_tiles_are_means_over_their_pixels(slides, level):
    opened, pixels = slides
    pyramid = opened.frame("s0").pyramid
    x, y, width, height = pyramid.box(level, 0, 0)
    cell = pyramid.downsample(level)
    own = pixels["s0"][y * cell : (y + height) * cell, x * cell : (x + width) * cell]
    found = opened.tile("s0", level, 0, 0).astype(float)
    wanted = resize(np.ascontiguousarray(own), width, height).astype(float)
    # Levels of the file are means that were rounded.
    assert np.abs(found - wanted).max() <= 2


def test_there_is_no_tile_beyond_the_slide_and_no_frame_without_a_file(slides):
    opened, _ = slides
    assert opened.tile("s0", 11, 9, 0) is None
    assert opened.tile("s0", 12, 0, 0) is None
    assert opened.frame("unknown") is None
    assert opened.tile("unknown", 3, 0, 0) is None


def test_many_threads_read_few_open_files(slides):
    opened, pixels = slides
    last = 11

    def read(number):
        name = f"s{number % 3}"
        column, row = number % 5, number % 4
        x, y, width, height = opened.frame(name).pyramid.box(last, column, row)
        found = opened.tile(name, last, column, row)
        return np.array_equal(found, pixels[name][y : y + height, x : x + width])

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(read, range(120)))
    assert opened._num_open <= 8
    assert max(opened._of_slide.values()) <= 3
    opened.close()
    assert opened._num_open == 0


def test_a_slide_of_one_huge_level_is_seen_from_far(tmp_path):
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (40, 80, 3), dtype=np.uint8)
    pixels = coarse.repeat(128, axis=0).repeat(128, axis=1)
    file = tmp_path / "flat.tiff"
    options = {"tile": (256, 256), "photometric": "rgb", "compression": "deflate"}
    tifffile.imwrite(file, pixels, **options)
    opened = OpenSlides(SlideSources({"flat": file}), tmp_path)
    pyramid = opened.frame("flat").pyramid
    level = pyramid.last_level - 7
    np.testing.assert_allclose(opened.tile("flat", level, 0, 0), coarse, atol=1)
    opened.close()


def test_a_damaged_slide_says_so_and_others_are_read(tmp_path, slides):
    opened, _ = slides
    broken = tmp_path / "broken.tiff"
    broken.write_bytes((tmp_path / "s0.tiff").read_bytes()[:5000])
    both = OpenSlides(SlideSources({"broken": broken, **opened.sources.files}), tmp_path)
    for _ in range(20):  # more often than files may be open
        with pytest.raises(SlideError, match="cut short"):
            both.frame("broken")
    assert both.tile("s0", 11, 0, 0) is not None
    both.close()


def test_a_link_to_another_folder_is_refused_unless_it_is_allowed(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    write_slide(outside / "a.tiff")
    os.symlink(outside / "a.tiff", inside / "a.tiff")
    sources = SlideSources({"a": inside / "a.tiff"})
    with pytest.raises(SlideError, match="link to another place"):
        OpenSlides(sources, inside).frame("a")
    allowed = OpenSlides(sources, None)
    assert allowed.frame("a").width == WIDTH
    allowed.close()


def test_a_picture_is_a_jpeg_of_its_size():
    image = Image.open(BytesIO(jpeg(np.full((20, 30, 3), 200, np.uint8))))
    assert (image.format, image.size) == ("JPEG", (30, 20))
