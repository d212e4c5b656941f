import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from sgpmil.errors import ExplanationError, MissingPartError
from sgpmil.explanation.exports import write_score_tiff
from sgpmil.explanation.maps import ScoreMap

tifffile = pytest.importorskip("tifffile", reason="pip install '.[slides]'")
pytest.importorskip("imagecodecs", reason="pip install '.[slides]'")

OME = {"ome": "http://www.openmicroscopy.org/Schemas/OME/2016-06"}
SHAPE = (701, 1030)
"""Neither side is a multiple of a tile or of two."""


@pytest.fixture(scope="module")
def maps():
    rng = np.random.default_rng(0)
    mean = rng.normal(size=SHAPE).astype(np.float32)
    mean[rng.random(SHAPE) < 0.3] = np.nan
    mean[:100, :200] = np.nan
    std = np.where(np.isnan(mean), np.nan, rng.random(SHAPE)).astype(np.float32)
    return {
        "attention mean": ScoreMap(mean, 64.0, (1000, 250)),
        "attention sd": ScoreMap(std, 64.0, (1000, 250)),
    }


@pytest.fixture(scope="module")
def path(maps, tmp_path_factory):
    path = tmp_path_factory.mktemp("tiff") / "a slide.ome.tiff"
    write_score_tiff(path, maps, mpp=0.25)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return path


def test_tifffile_reads_every_level_exactly(path, maps):
    with tifffile.TiffFile(path) as file:
        assert file.is_ome
        assert not file.is_bigtiff
        (series,) = file.series
        assert series.axes == "CYX"
        levels = [level.asarray() for level in series.levels]
    assert [level.shape for level in levels] == [
        (2, 701, 1030),
        (2, 351, 515),
        (2, 176, 258),
        (2, 88, 129),
    ]
    assert all(level.dtype == np.float32 for level in levels)
    for found, layer in zip(levels[0], maps.values(), strict=True):
        assert np.array_equal(found, layer.values, equal_nan=True)
    for upper, lower in pairwise(levels):
        # The four pixels beneath each one; beyond the edge there is nothing.
        rows, columns = lower.shape[1:]
        beneath = np.full((4, 2, rows, columns), np.nan)
        for index, (y, x) in enumerate(np.ndindex(2, 2)):
            part = upper[:, y::2, x::2]
            beneath[index, :, : part.shape[1], : part.shape[2]] = part
        known = ~np.isnan(beneath).all(axis=0)
        assert np.array_equal(~np.isnan(lower), known)
        mean = np.nanmean(beneath[:, known], axis=0)
        np.testing.assert_allclose(lower[known], mean, rtol=1e-5, atol=1e-7)
        assert not known.all()


def test_smaller_levels_are_where_the_specification_puts_them(path):
    # Bio-Formats, and with it QuPath, looks for them in the SubIFDs of each plane.
    with tifffile.TiffFile(path) as file:
        assert len(file.pages) == 2
        for page in (file.pages[0], file.pages[1].aspage()):
            assert page.is_tiled
            assert page.tile == (256, 256)
            assert page.subfiletype == 0
            assert page.predictor == 1
            assert page.compression.name == "ADOBE_DEFLATE"
            below = list(page.pages)
            assert [level.subfiletype for level in below] == [1, 1, 1]
            assert [level.imagewidth for level in below] == [515, 258, 129]
            assert all(level.is_tiled for level in below)


def test_the_description_says_sizes_places_and_names(path):
    with tifffile.TiffFile(path) as file:
        text = file.ome_metadata
        tags = file.pages[0].tags
        per_cm = tags["XResolution"].value[0] / tags["XResolution"].value[1]
        assert tags["ResolutionUnit"].value.name == "CENTIMETER"
    assert 1e4 / per_cm == pytest.approx(16)  # microns a pixel: 0.25 times 64
    root = ElementTree.fromstring(text)  # noqa: S314 (our own)
    pixels = root.find(".//ome:Pixels", OME)
    assert pixels.get("Type") == "float"
    assert (pixels.get("SizeX"), pixels.get("SizeY"), pixels.get("SizeC")) == ("1030", "701", "2")
    assert float(pixels.get("PhysicalSizeX")) == float(pixels.get("PhysicalSizeY")) == 16
    assert pixels.get("PhysicalSizeXUnit") == "µm"
    names = [channel.get("Name") for channel in pixels.findall("ome:Channel", OME)]
    assert names == ["attention mean", "attention sd"]
    for plane in pixels.findall("ome:Plane", OME):
        assert float(plane.get("PositionX")) == 250
        assert float(plane.get("PositionY")) == 62.5
        assert plane.get("PositionXUnit") == "µm"


def test_libtiff_reads_the_first_channel_too(path, maps):
    pillow = pytest.importorskip("PIL.Image", reason="pip install '.[slides]'")
    with pillow.open(path) as image:
        assert image.mode == "F"
        assert np.array_equal(np.array(image), maps["attention mean"].values, equal_nan=True)


def test_openslide_opens_it_but_has_no_floating_point(path):
    # Said in the docstring; should a later version read them, it wants to be said otherwise.
    openslide = pytest.importorskip("openslide", reason="pip install '.[slides]'")
    with openslide.OpenSlide(path) as slide:
        assert slide.dimensions == (1030, 701)
        assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(16)
        with pytest.raises(openslide.OpenSlideError, match="32-bit samples"):
            slide.read_region((0, 0), 0, (10, 10))


def test_outside_may_be_zero(tmp_path, maps):
    write_score_tiff(tmp_path / "a.ome.tiff", maps, outside=0.0)
    with tifffile.TiffFile(tmp_path / "a.ome.tiff") as file:
        levels = [level.asarray() for level in file.series[0].levels]
    values = maps["attention sd"].values
    assert np.array_equal(levels[0][1], np.where(np.isnan(values), 0, values))
    with tifffile.TiffFile(tmp_path / "a.ome.tiff") as file:
        assert "XResolution" not in file.pages[0].tags or file.pages[0].resolutionunit == 1
    # What is outside does not dilute the smaller levels.
    block = values[400:402, 600:602]
    assert levels[1][1, 200, 300] == pytest.approx(np.nanmean(block))


def test_the_same_maps_give_the_same_bytes(tmp_path, maps, path):
    write_score_tiff(tmp_path / "b.ome.tiff", maps, mpp=0.25)
    assert (tmp_path / "b.ome.tiff").read_bytes() == path.read_bytes()


def test_a_small_map_is_one_level(tmp_path):
    tiny = ScoreMap(np.array([[1.5]], np.float32), 512.0, (0, 0))
    write_score_tiff(tmp_path / "a.ome.tiff", {"only": tiny}, mpp=0.5)
    with tifffile.TiffFile(tmp_path / "a.ome.tiff") as file:
        assert len(file.series[0].levels) == 1
        assert file.asarray().ravel().tolist() == [1.5]


def test_large_files_are_bigtiff(tmp_path, maps, monkeypatch):
    monkeypatch.setattr("sgpmil.explanation.exports.score_tiff._BIG", 1000)
    write_score_tiff(tmp_path / "a.ome.tiff", maps)
    with tifffile.TiffFile(tmp_path / "a.ome.tiff") as file:
        assert file.is_bigtiff
        assert np.array_equal(file.asarray()[0], maps["attention mean"].values, equal_nan=True)


def test_names_may_have_any_character(tmp_path):
    tiny = ScoreMap(np.ones((2, 2), np.float32), 1.0, (0, 0))
    write_score_tiff(tmp_path / "a.ome.tiff", {'evidence for "G3" <5 µm & more': tiny})
    with tifffile.TiffFile(tmp_path / "a.ome.tiff") as file:
        root = ElementTree.fromstring(file.ome_metadata)  # noqa: S314 (our own)
    names = [channel.get("Name") for channel in root.iterfind(".//ome:Channel", OME)]
    assert names == ['evidence for "G3" <5 µm & more']


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path, monkeypatch):
    one = ScoreMap(np.ones((2, 2), np.float32), 1.0, (0, 0))
    path = tmp_path / "a.ome.tiff"
    with pytest.raises(ExplanationError, match="at least one map to write, but got none"):
        write_score_tiff(path, {})
    for other in (
        ScoreMap(np.ones((2, 3), np.float32), 1.0, (0, 0)),
        ScoreMap(np.ones((2, 2), np.float32), 2.0, (0, 0)),
        ScoreMap(np.ones((2, 2), np.float32), 1.0, (1, 0)),
    ):
        with pytest.raises(ExplanationError, match="maps of the same pixels, but 'a' has"):
            write_score_tiff(path, {"a": one, "b": other})
    for mpp in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ExplanationError, match=re.escape(f"but got {mpp}")):
            write_score_tiff(path, {"a": one}, mpp=mpp)
    monkeypatch.setattr("sgpmil.slides.optional_part.find_spec", lambda name: None)
    with pytest.raises(MissingPartError, match="'tifffile'"):
        write_score_tiff(path, {"a": one})
    assert not list(tmp_path.iterdir())
