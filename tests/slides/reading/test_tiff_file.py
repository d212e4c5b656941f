import io
import logging
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")
pytest.importorskip("imagecodecs", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

import tifffile

from sgpmil.errors import SlideError
from sgpmil.slides.reading import tiff_pixels
from sgpmil.slides.reading.openslide_file import OpenSlideFile
from sgpmil.slides.reading.slide import CutShortError, Level
from sgpmil.slides.reading.tiff_file import TiffSlide, check_chain

from .slide_files import CMU, TCGA, halves, needs_slides, picture, write_ome, write_tiff


@pytest.fixture
def image():
    return picture(200, 300)


@needs_slides
@pytest.mark.parametrize("path", [CMU, TCGA])
def test_real_slides_have_the_pixels_that_openslide_gives(path):
    with TiffSlide(path) as slide, OpenSlideFile(path) as other:
        assert (slide.size, slide.mpp) == (other.size, other.mpp)
        assert slide.objective == other.objective
        for window in ((0, 0, 300, 300), (517, 333, 400, 256), (-40, -30, 100, 100)):
            np.testing.assert_array_equal(slide.read(*window), other.read(*window))


@needs_slides
def test_a_lower_level_of_a_real_slide():
    with TiffSlide(TCGA) as slide, OpenSlideFile(TCGA) as other:
        assert slide.levels == (Level(4443, 3567, 1.0), Level(2221, 1783, 2.0))
        whole = other.read(0, 0, 2221, 1783, level=1)
        np.testing.assert_array_equal(
            slide.read(2000, 1000, 90, 70, level=1), whole[500:570, 1000:1090]
        )


@pytest.mark.parametrize("options", [
    {},
    {"subifds": True},
    {"subifds": True, "compression": None},
    {"compression": "jpeg2000", "compressionargs": {"reversible": True, "level": 0}},
    {"compression": "deflate", "predictor": True},
    {"tile": None, "rowsperstrip": 7},
    {"tile": None, "rowsperstrip": 7, "compression": None},
    {"tile": None, "rowsperstrip": 10**4},
    {"tile": None, "compression": None},
    {"tile": (16, 128)},
])  # fmt: skip
def test_pyramids_however_they_are_stored(tmp_path, image, options):
    pyramid = halves(image, 3)
    path = write_tiff(tmp_path / "a.tif", pyramid, **options)
    with TiffSlide(path) as slide:
        assert [level.downsample for level in slide.levels] == [1.0, 2.0, 4.0]
        assert slide.mpp == pytest.approx(0.25)
        for number, level in enumerate(pyramid):
            height, width = level.shape[:2]
            scale = 2**number
            np.testing.assert_array_equal(slide.read(0, 0, width, height, level=number), level)
            part = slide.read(20 * scale, 12 * scale, 37, 31, level=number)
            np.testing.assert_array_equal(part, level[12:43, 20:57])
            beyond = slide.read((width - 5) * scale, -3 * scale, 9, 8, level=number)
            np.testing.assert_array_equal(beyond[3:, :5], level[:5, -5:])
            assert (beyond[:3] == 255).all()
            assert (beyond[:, 5:] == 255).all()
        assert (slide.read(1000, 1000, 4, 4) == 255).all()
        assert (slide.read(-9, 0, 4, 4) == 255).all()


def test_windows_begin_at_the_nearest_pixel_of_a_level(tmp_path, image):
    pyramid = halves(image, 3)
    with TiffSlide(write_tiff(tmp_path / "a.tif", pyramid)) as slide:
        for x, level, column in ((3, 1, 2), (4, 1, 2), (5, 2, 1), (7, 2, 2), (-3, 2, -1)):
            found = slide.read(x, 40, 8, 8, level=level)
            top = 40 >> level
            if column < 0:
                found, column = found[:, -column:], 0
            expected = pyramid[level][top : top + 8, column : column + found.shape[1]]
            np.testing.assert_array_equal(found, expected)


def test_levels_of_uneven_steps(tmp_path, image):
    pyramid = halves(image, 5)
    chosen = [pyramid[0], pyramid[2], pyramid[3]]
    label = picture(40, 41, seed=3)
    path = write_tiff(tmp_path / "a.tif", chosen)
    with tifffile.TiffWriter(path, append=True) as writer:
        writer.write(label, photometric="rgb", metadata=None)
        writer.write(label[:35], photometric="rgb", metadata=None, subfiletype=1)
    with TiffSlide(path) as slide:
        assert [level.downsample for level in slide.levels] == [1.0, 4.0, 8.0]
        np.testing.assert_array_equal(slide.read(8, 8, 30, 20, level=2), pyramid[3][1:21, 1:31])


def test_ome(tmp_path, image):
    physical = {"PhysicalSizeX": 499.0, "PhysicalSizeXUnit": "nm"}
    physical |= {"PhysicalSizeY": 0.499, "PhysicalSizeYUnit": "µm"}
    pyramid = halves(image, 3)
    path = write_ome(tmp_path / "a.ome.tif", pyramid, physical=physical)
    with TiffSlide(path) as slide:
        assert slide.slide_id == "a.ome"
        assert slide.mpp == pytest.approx(0.499)
        assert slide.objective is None
        assert [level.downsample for level in slide.levels] == [1.0, 2.0, 4.0]
        np.testing.assert_array_equal(slide.read(0, 0, 75, 50, level=2), pyramid[2])
    with TiffSlide(write_ome(tmp_path / "b.ome.tif", pyramid)) as slide:
        assert slide.mpp is None


def test_ome_with_channels_in_pages_of_their_own(tmp_path, image):
    pyramid = [np.moveaxis(level, 2, 0) for level in halves(image, 2)]
    path = write_ome(tmp_path / "a.ome.tif", pyramid, axes="CYX", photometric="minisblack")
    with TiffSlide(path) as slide:
        assert slide.size == (300, 200)
        np.testing.assert_array_equal(slide.read(0, 0, 300, 200), image)
        np.testing.assert_array_equal(
            slide.read(40, 20, 9, 9, level=1), pyramid[1].transpose(1, 2, 0)[10:19, 20:29]
        )


def test_the_largest_image_of_several(tmp_path, image):
    path = tmp_path / "a.ome.tif"
    size = {"PhysicalSizeX": 0.25, "PhysicalSizeXUnit": "µm"}
    with tifffile.TiffWriter(path, ome=True) as writer:
        writer.write(
            image[:50, :60],
            photometric="rgb",
            metadata={"axes": "YXS", "PhysicalSizeX": 9.0, "PhysicalSizeXUnit": "µm"},
        )
        writer.write(image, photometric="rgb", metadata={"axes": "YXS", **size})
    with TiffSlide(path) as slide:
        assert (slide.size, slide.mpp) == ((300, 200), 0.25)
        np.testing.assert_array_equal(slide.read(5, 6, 20, 20), image[6:26, 5:25])


@pytest.mark.parametrize("options", [{}, {"tile": None}, {"tile": None, "compression": None}])
def test_planar(tmp_path, image, options):
    planes = np.moveaxis(image, 2, 0).copy()
    path = write_tiff(tmp_path / "a.tif", [planes], planarconfig="separate", **options)
    with TiffSlide(path) as slide:
        np.testing.assert_array_equal(slide.read(70, 50, 200, 100), image[50:150, 70:270])


@pytest.mark.parametrize("options", [{}, {"compression": None, "tile": None}])
def test_16_bits(tmp_path, image, options):
    path = write_tiff(tmp_path / "a.tif", [image.astype(np.uint16) * 257], **options)
    with TiffSlide(path) as slide:
        np.testing.assert_array_equal(slide.read(0, 0, 300, 200), image)
    grey = image[:, :, 0].astype(">u2") * 257
    tifffile.imwrite(tmp_path / "b.tif", grey, byteorder=">", metadata=None, **options)
    with TiffSlide(tmp_path / "b.tif") as slide:
        np.testing.assert_array_equal(slide.read(0, 0, 300, 200)[:, :, 2], image[:, :, 0])


def test_12_bits_in_16_where_ome_says_so(tmp_path, image):
    path = write_ome(
        tmp_path / "a.ome.tif", [image.astype(np.uint16) * 16], physical={"SignificantBits": 12}
    )
    with TiffSlide(path) as slide:
        expected = image.astype(float) * 16 * 255 / 4095
        assert np.abs(slide.read(0, 0, 300, 200) - expected).max() <= 0.5


def test_grey_and_palette(tmp_path, image, rng):
    grey = image[:, :, 0]
    for name, expected in (("minisblack", grey), ("miniswhite", 255 - grey)):
        path = write_tiff(tmp_path / f"{name}.tif", [grey], photometric=name)
        with TiffSlide(path) as slide:
            np.testing.assert_array_equal(slide.read(0, 0, 300, 200)[:, :, 1], expected)
    colours = rng.integers(0, 256, (3, 256), dtype=np.uint16)
    path = write_tiff(tmp_path / "p.tif", [grey], photometric="palette", colormap=colours * 257)
    with TiffSlide(path) as slide:
        np.testing.assert_array_equal(slide.read(0, 0, 300, 200), colours.T[grey])


@pytest.mark.parametrize("compression", ["lzw", None, "jpeg"])
def test_cmyk_as_pillow_reads_it(tmp_path, compression):
    from PIL import Image

    cmyk = np.dstack([picture(200, 300), picture(200, 300, seed=1)[:, :, :1]])
    path = write_tiff(
        tmp_path / "a.tif", [cmyk], photometric="separated", compression=compression, tile=None
    )
    with TiffSlide(path) as slide, Image.open(path) as pillow:
        assert pillow.mode == "CMYK"
        difference = slide.read(0, 0, 300, 200) - np.asarray(pillow.convert("RGB")).astype(int)
        assert np.abs(difference).max() <= 2


@pytest.mark.parametrize("kind", ["unassalpha", "assocalpha", "unspecified"])
def test_a_fourth_sample(tmp_path, image, kind):
    alpha = picture(200, 300, seed=1)[:, :, :1]
    share = alpha / 255.0
    stored = np.round(image * share).astype(np.uint8) if kind == "assocalpha" else image
    path = write_tiff(tmp_path / "a.tif", [np.dstack([stored, alpha])], extrasamples=[kind])
    expected = image if kind == "unspecified" else image * share + 255 * (1 - share)
    with TiffSlide(path) as slide:
        assert np.abs(slide.read(0, 0, 300, 200) - expected).max() <= 1


def test_imagej_states_microns(tmp_path, image):
    path = tmp_path / "a.tif"
    options = {"imagej": True, "resolution": (4.0, 4.0)}
    tifffile.imwrite(path, image, metadata={"unit": "um", "axes": "YXS"}, **options)
    with TiffSlide(path) as slide:
        assert slide.mpp == pytest.approx(0.25)


@pytest.mark.parametrize(("dpi", "mpp"), [(72, None), (96, None), (300, None), (101600, 0.25)])
def test_print_resolution_is_no_pixel_size(tmp_path, image, dpi, mpp):
    options = {"resolution": (dpi, dpi), "resolutionunit": "INCH"}
    path = write_tiff(tmp_path / "a.tif", [image], mpp=None, **options)
    with TiffSlide(path) as slide:
        assert slide.mpp == (mpp and pytest.approx(mpp))
    with TiffSlide(write_tiff(tmp_path / "b.tif", [image], mpp=None)) as slide:
        assert slide.mpp is None


@pytest.mark.parametrize(("pixels", "options", "words"), [
    (np.zeros((5, 64, 64), np.uint8), {"photometric": "minisblack"}, "stack .*Y: 64"),
    (np.zeros((64, 64, 3), np.float32), {}, "RGB of 3 × float32"),
    (np.zeros((64, 64, 3), np.int16), {}, "RGB of 3 × int16"),
    (np.zeros((64, 64, 3), np.uint8), {"photometric": "cielab"}, "CIELAB"),
])  # fmt: skip
def test_pixels_that_are_no_colours(tmp_path, pixels, options, words):
    path = write_tiff(tmp_path / "a.tif", [pixels], **options)
    with pytest.raises(SlideError, match=words):
        TiffSlide(path)


def test_only_the_tiles_that_are_touched_are_decoded(tmp_path, image, monkeypatch):
    decoded = []
    segment = tiff_pixels._segment
    monkeypatch.setattr(
        tiff_pixels, "_segment", lambda page, index: decoded.append(index) or segment(page, index)
    )
    with TiffSlide(write_tiff(tmp_path / "a.tif", [image])) as slide:
        slide.read(70, 70, 30, 30)
        assert decoded == [6]  # 5 tiles a row
        slide.read(100, 100, 40, 20)
        assert decoded == [6, 7]
        slide.read(0, 0, 1000, 1000)
        assert sorted(decoded) == list(range(20))


def test_the_cache_forgets_the_oldest():
    cache = tiff_pixels.TileCache(3 * 300)
    tiles = [np.full((10, 10, 3), value, dtype=np.uint8) for value in range(4)]
    for number in range(3):
        cache.put(number, tiles[number])
    assert cache.get(0) is tiles[0]
    cache.put(3, tiles[3])
    assert cache.get(1) is None
    assert [cache.get(number) is tiles[number] for number in (0, 2, 3)] == [True] * 3
    cache.put("huge", np.zeros((100, 100, 3), dtype=np.uint8))
    assert cache.get("huge") is None


def write_sparse(path, side, tile=256):
    """Write an image of which one tile exists, as scanners leave out empty glass."""
    count = (-(-side // tile)) ** 2
    black = np.zeros((tile, tile, 3), dtype=np.uint8).tobytes()
    tiles = (black if index == 1 else b"" for index in range(count))
    options = {"photometric": "rgb", "tile": (tile, tile), "metadata": None}
    tifffile.imwrite(path, tiles, shape=(side, side, 3), dtype=np.uint8, bigtiff=True, **options)
    return path


def test_tiles_left_out_are_white(tmp_path):
    with TiffSlide(write_sparse(tmp_path / "a.tif", 1000)) as slide:
        found = slide.read(0, 0, 1000, 1000)
    assert (found[:256, 256:512] == 0).all()
    found[:256, 256:512] = 255
    assert (found == 255).all()


@pytest.mark.slow
def test_a_huge_level_is_never_held_whole(tmp_path):
    path = write_sparse(tmp_path / "a.tif", 40_000, 1024)  # 4.8 GB of pixels
    with TiffSlide(path) as slide:
        tracemalloc.start()
        for x in range(0, 40_000, 2_000):
            slide.read_patch(x, x, 512, 256)
        slide.thumbnail(400)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 250e6


def test_a_huge_strip_is_refused_unless_it_is_stored_as_it_is(tmp_path, image, monkeypatch):
    monkeypatch.setattr(tiff_pixels, "MOST_TILE_PIXELS", 300 * 199)
    options = {"tile": None, "rowsperstrip": 200}
    path = write_tiff(tmp_path / "a.tif", [image], **options)
    with pytest.raises(SlideError, match=r"but got 300 × 200.*tiled TIFF"):
        TiffSlide(path)
    path = write_tiff(tmp_path / "b.tif", [image], compression=None, **options)
    with TiffSlide(path) as slide:
        np.testing.assert_array_equal(slide.read(100, 50, 30, 20), image[50:70, 100:130])


@pytest.mark.parametrize(
    ("compression", "part"),
    [("jpeg", 0), ("jpeg", 0.5), ("lzw", 0), ("lzw", 0.5), ("deflate", 0.5), ("jpeg2000", 0)],
)
def test_a_damaged_tile_spoils_itself_only(tmp_path, image, compression, part):
    path = write_tiff(tmp_path / "a.tif", [image], compression=compression)
    with tifffile.TiffFile(path) as tiff:
        offset, count = tiff.pages[0].dataoffsets[6], tiff.pages[0].databytecounts[6]
    content = bytearray(path.read_bytes())
    lost = count - int(count * part)
    content[offset + count - lost : offset + count] = bytes(lost)
    path.write_bytes(content)
    with TiffSlide(path) as slide:
        before = slide.read(0, 0, 60, 60)
        with pytest.raises(SlideError, match=r"x = 70, y = 70 of level 0 in .*a\.tif.* damaged"):
            slide.read(70, 70, 10, 10)
        np.testing.assert_array_equal(slide.read(0, 0, 60, 60), before)


def test_damage_is_said_once(tmp_path, image, rng, capfd, caplog, recwarn):
    good = write_tiff(tmp_path / "a.tif", halves(image[:80, :80], 2)).read_bytes()
    path = tmp_path / "bad.tif"
    said = []
    for _ in range(150):
        content = bytearray(good)
        for place in rng.integers(0, 700, 4):
            content[place] = rng.integers(0, 256)
        path.write_bytes(content)
        try:
            with TiffSlide(path) as slide:
                slide.read(0, 0, 80, 80)
        except SlideError as error:
            said.append(str(error))
    assert len(said) > 50
    assert all(str(path) in words and "\n" not in words for words in said)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert not recwarn.list
    assert logging.getLogger("tifffile").level == logging.NOTSET


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("bigtiff", [False, True])
def test_pages_beyond_the_end(byteorder, bigtiff):
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream, bigtiff=bigtiff, byteorder=byteorder) as writer:
        for level in halves(picture(64, 64), 3):
            writer.write(level, photometric="rgb", metadata=None)
    content = stream.getvalue()
    whole = io.BytesIO(content)
    check_chain(whole, "'a'")
    assert whole.tell() == 0
    with tifffile.TiffFile(io.BytesIO(content)) as tiff:
        last = tiff.pages[2].offset
    check_chain(io.BytesIO(content[: last + 400]), "'a'")
    for length in (3, 7, last // 2, last + 1, last + 30):
        with pytest.raises(CutShortError, match=f"'a', but got {length:,}: the file is cut short"):
            check_chain(io.BytesIO(content[:length]), "'a'")


def test_a_chain_that_bites_its_tail_ends():
    page = (8).to_bytes(4, "little")
    check_chain(io.BytesIO(b"II*\0" + page + bytes(2) + page), "'a'")
