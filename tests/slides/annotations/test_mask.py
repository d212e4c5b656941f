import logging

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")

import shapely

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations import mask
from sgpmil.slides.annotations.mask import AnnotationMask, mask_polygons, rasterise, read_mask
from sgpmil.slides.annotations.regions import Annotations, Region

from .drawings import circle, write_tiff


@pytest.fixture
def pixels(rng):
    return (rng.random((200, 300)) > 0.7).astype(np.uint8)


@pytest.mark.parametrize("options", [{}, {"compression": None}, {"compression": "lzw"}])
def test_one_level(tmp_path, pixels, options):
    path = write_tiff(tmp_path / "a.tif", pixels * 255, **options)
    found = read_mask(path)
    np.testing.assert_array_equal(found.pixels, pixels == 1)
    assert found.downsample == 1
    assert found.slide_size == (300, 200)
    assert found.is_positive


@pytest.mark.parametrize("subifds", [True, False])
def test_of_a_pyramid_the_largest_level_that_fits(tmp_path, pixels, subifds, monkeypatch):
    path = write_tiff(tmp_path / "a.tif", pixels, levels=3, subifds=subifds)
    assert read_mask(path).downsample == 1
    monkeypatch.setattr(mask, "MOST_PIXELS", 100 * 150)
    half = read_mask(path)
    np.testing.assert_array_equal(half.pixels, pixels[::2, ::2] == 1)
    assert half.downsample == 2
    monkeypatch.setattr(mask, "MOST_PIXELS", 10)
    assert read_mask(path).downsample == 4


def test_downsample_from_the_size_of_the_slide(tmp_path, pixels):
    path = write_tiff(tmp_path / "a.tif", pixels)
    assert read_mask(path, slide_size=(300 * 32 + 31, 200 * 32)).downsample == 32
    assert read_mask(path, slide_size=(900, 600)).downsample == pytest.approx(3)
    assert read_mask(path, downsample=64.0).downsample == 64
    with pytest.raises(AnnotationError, match="2000 × 9600 made smaller, but got 300 × 200"):
        read_mask(path, slide_size=(2000, 9600))


def test_values_and_channels(tmp_path, pixels):
    three = pixels * 2 + (1 - pixels)
    path = write_tiff(tmp_path / "a.tif", three)
    assert read_mask(path).pixels.all()
    np.testing.assert_array_equal(read_mask(path, positive_values=(2,)).pixels, pixels == 1)
    alpha = np.full_like(pixels, 255)
    colours = np.stack([pixels * 9, 0 * pixels, 0 * pixels, alpha], axis=2)
    path = write_tiff(tmp_path / "b.tif", colours, photometric="rgb", extrasamples=["unassalpha"])
    np.testing.assert_array_equal(read_mask(path).pixels, pixels == 1)
    path = write_tiff(tmp_path / "c.tif", np.zeros((8, 30, 20), dtype=np.uint8))
    with pytest.raises(AnnotationError, match=r"one channel .* shape"):
        read_mask(path)
    assert not read_mask(write_tiff(tmp_path / "d.tif", 0 * pixels)).is_positive


@pytest.mark.parametrize("compression", ["deflate", None, "lzw"])
def test_damaged_files(tmp_path, pixels, compression, capfd, caplog):
    good = write_tiff(tmp_path / "a.tif", pixels, compression=compression).read_bytes()
    bad = tmp_path / "bad.tif"
    for content in (good[: len(good) // 2], good[:6], b"", b"II*\0junk", b"no image"):
        bad.write_bytes(content)
        with pytest.raises(AnnotationError, match=r"mask as TIFF, but got .*bad\.tif"):
            read_mask(bad)
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_mask(tmp_path / "absent.tif")
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert logging.getLogger("tifffile").level == logging.NOTSET


def test_polygons_of_a_mask(pixels):
    pixels = pixels[:40, :60]
    found = mask_polygons(AnnotationMask(pixels == 1, 3.0)).positive_area()
    assert found.area == pytest.approx(pixels.sum() * 9)
    from shapely import box

    for row, column in [(0, 0), (7, 11), (39, 59)]:
        square = box(3 * column, 3 * row, 3 * column + 3, 3 * row + 3)
        assert found.intersection(square).area == pytest.approx(9.0 * pixels[row, column])
    empty = mask_polygons(AnnotationMask(np.zeros((4, 4), dtype=bool), 3.0))
    assert not empty.is_positive


@pytest.mark.parametrize(
    ("shape", "message"),
    [((5000, 6000), "at most 262144 sides"), ((200, 200), "at most 8192 areas")],
)
def test_outlines_of_noise_are_refused_before_the_work(shape, message):
    checkerboard = (np.arange(shape[0])[:, None] + np.arange(shape[1])) % 2 == 1
    with pytest.raises(AnnotationError, match=message):
        mask_polygons(AnnotationMask(checkerboard, 1.0))


def test_outlines_are_those_of_the_pixels_one_by_one(rng):
    for _ in range(5):
        pixels = rng.random((17, 23)) < 0.5
        found = mask_polygons(AnnotationMask(pixels, 2.0)).positive_area()
        row, column = np.nonzero(pixels)
        squares = shapely.box(2 * column, 2 * row, 2 * column + 2, 2 * row + 2)
        assert found.is_valid
        assert shapely.equals(found, shapely.union_all(squares))


def test_centres_one_by_one():
    ring = shapely.Polygon(circle(300, 260, 200), [circle(300, 260, 90)])
    far = shapely.box(-50, -50, 60, 40)
    found = rasterise(Annotations((Region(ring), Region(far))), 32, (14, 20))
    for row in range(14):
        for column in range(20):
            centre = shapely.Point(32 * column + 16, 32 * row + 16)
            assert found[row, column] == (ring.contains(centre) or far.contains(centre))
    assert 0 < found.sum() < found.size


def test_mask(rng):
    pixels = rng.random((10, 12)) < 0.5
    mask = AnnotationMask(pixels, 4.0)
    np.testing.assert_array_equal(rasterise(mask, 4, (10, 12)), pixels)
    coarse = rasterise(mask, 8, (6, 7))
    assert coarse.shape == (6, 7)
    np.testing.assert_array_equal(coarse[:5, :6], pixels[1::2, 1::2])
    assert not coarse[5:].any()
    assert not coarse[:, 6:].any()
    fine = rasterise(mask, 2, (20, 24))
    np.testing.assert_array_equal(fine, np.repeat(np.repeat(pixels, 2, 0), 2, 1))


def test_nothing():
    assert not rasterise(Annotations(()), 8, (3, 4)).any()
