"""Maps and exports lie where the slide's own pixels are, whatever the magnifications.

Every patch's score is something that can be read off the slide: the mean red of its pixels, as
OpenSlide reads them. So wherever a map or a file puts a score, the slide itself says whether it
belongs there.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")
pytest.importorskip("imagecodecs", reason="pip install '.[slides]'")
pytest.importorskip("openslide", reason="pip install '.[slides]'")

import cv2
import openslide
import shapely
import tifffile

from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.exports import (
    write_qupath_geojson,
    write_score_tiff,
    write_tiatoolbox_overlay,
)
from sgpmil.explanation.maps import patch_side, score_map
from sgpmil.phantoms import PhantomSettings, make_scene, write_phantom
from sgpmil.slides.patches import PatchSettings, place_patches
from sgpmil.slides.reading import open_slide, slide_resolution
from sgpmil.slides.tissue.contours import Tissue

SIZE = (2203, 1700)
"""Neither side is a multiple of a patch: the last row and column of the map lie partly outside."""
OME = {"ome": "http://www.openmicroscopy.org/Schemas/OME/2016-06"}


@dataclass(frozen=True)
class Scored:
    """A slide of 40×, patches of a lower magnification on it, and scores read off its pixels."""

    path: Path
    red: np.ndarray
    scores: InstanceScores
    side: int
    mpp: float


@pytest.fixture(scope="session")
def slide_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("phantom40x") / "phantom.tiff"
    write_phantom(path, make_scene(3, PhantomSettings(size=SIZE, mpp=0.25, tumour_share=0.1)))
    return path


@pytest.fixture(scope="session")
def red(slide_path):
    with openslide.OpenSlide(slide_path) as slide:
        assert slide.dimensions == SIZE
        return np.array(slide.read_region((0, 0), 0, SIZE).convert("RGB"))[..., 0].astype(float)


@pytest.fixture(
    params=[(256, 20), (128, 10), (256, 40), (224, 15)], ids=lambda p: "{}px{}x".format(*p)
)
def scored(request, slide_path, red):
    """Place patches as extraction does, on all of the slide but one corner."""
    size, power = request.param
    with open_slide(slide_path) as slide:
        resolution = slide_resolution(slide)
        area = shapely.box(0, 0, *SIZE) - shapely.box(0, 0, 700, 600)
        patches = place_patches(
            Tissue(area), slide, resolution, PatchSettings(size, magnification=float(power))
        )
    assert resolution.magnification == 40
    assert patches.side == round(size * 40 / power)
    # Read patch by patch, at the places that go into the scores and nowhere else.
    with openslide.OpenSlide(slide_path) as slide:
        mpp = float(slide.properties["openslide.mpp-x"])
        windows = [
            np.array(slide.read_region((int(x), int(y)), 0, (patches.side,) * 2).convert("RGB"))
            for x, y in patches.coords
        ]
    means = np.array([window[..., 0].mean() for window in windows])
    spreads = np.array([window[..., 0].std() for window in windows])
    assert len(np.unique(means)) > 0.9 * len(means)  # patches can be told from each other
    scores = InstanceScores(means, spreads, coords=patches.coords, patch_size=patches.side)
    return Scored(slide_path, red, scores, patches.side, mpp)


def agreement(found, scored, downsample, origin=(0, 0)):
    """Share of map pixels that equal the slide's pixels, averaged over the patch around them."""
    side = scored.side
    x = origin[0] + np.arange(found.shape[1]) * downsample
    y = origin[1] + np.arange(found.shape[0]) * downsample
    matches = np.zeros(found.shape, dtype=bool)
    for left in np.unique(x // side).astype(int) * side:
        for top in np.unique(y // side).astype(int) * side:
            mean = np.float32(scored.red[top : top + side, left : left + side].mean())
            around = np.ix_((y >= top) & (y < top + side), (x >= left) & (x < left + side))
            matches[around] = found[around] == mean
    return matches[~np.isnan(found)].mean()


@pytest.mark.parametrize("share", [1, 4, 16])
def test_every_pixel_of_the_map_is_the_slide_beneath_it(scored, share):
    downsample = scored.side / share
    found = score_map(
        scored.scores.coords,
        patch_side(scored.scores),
        scored.scores.attention_mean,
        slide_size=SIZE,
        downsample=downsample,
    )
    assert agreement(found.values, scored, downsample) == 1
    # It can fail: a shift of one map pixel puts patches' edges in the wrong place.
    shifted = np.roll(found.values, 1, axis=1)
    assert agreement(shifted, scored, downsample) < 1 - 0.5 / share
    # The corner without tissue, and what no whole patch fits into, are empty; nothing else is.
    expected = np.zeros(found.values.shape, dtype=bool)
    for x, y in (scored.scores.coords // downsample).astype(int):
        expected[y : y + share, x : x + share] = True
    assert np.array_equal(np.isfinite(found.values), expected)
    assert not np.isfinite(found.values).all()


def test_the_map_is_the_slide_as_another_library_makes_it_small(scored):
    side = scored.side
    found = score_map(
        scored.scores.coords,
        side,
        scored.scores.attention_mean,
        slide_size=SIZE,
        downsample=float(side),
    )
    columns, rows = (length // side for length in SIZE)
    small = cv2.resize(
        scored.red[: rows * side, : columns * side], (columns, rows), interpolation=cv2.INTER_AREA
    )
    whole = found.values[:rows, :columns]
    np.testing.assert_allclose(whole[~np.isnan(whole)], small[~np.isnan(whole)], rtol=1e-6)
    assert (~np.isnan(whole)).sum() == len(scored.scores.coords)


def test_the_tiff_says_where_its_pixels_are_on_the_slide(scored, tmp_path):
    mean, std = (
        score_map(scored.scores.coords, scored.side, values, downsample=scored.side / 4)
        for values in (scored.scores.attention_mean, scored.scores.attention_std)
    )
    write_score_tiff(tmp_path / "a.ome.tiff", {"mean": mean, "std": std}, mpp=scored.mpp)
    with tifffile.TiffFile(tmp_path / "a.ome.tiff") as file:
        values = file.series[0].levels[0].asarray()
        root = ElementTree.fromstring(file.ome_metadata)  # noqa: S314 (our own)
    size = float(root.find(".//ome:Pixels", OME).get("PhysicalSizeX")) / scored.mpp
    plane = root.find(".//ome:Plane", OME)
    origin = [float(plane.get(name)) / scored.mpp for name in ("PositionX", "PositionY")]
    assert size == pytest.approx(scored.side / 4, rel=1e-6)
    origin = [round(axis) for axis in origin]
    assert origin == scored.scores.coords.min(axis=0).tolist()
    assert agreement(values[0], scored, round(size, 6), origin) == 1


@pytest.mark.parametrize("write", [write_qupath_geojson, write_tiatoolbox_overlay])
def test_the_squares_lie_on_the_pixels_that_they_tell_of(scored, tmp_path, write):
    write(tmp_path / "a.geojson", "phantom", scored.scores, ("normal", "tumour"))
    features = json.loads((tmp_path / "a.geojson").read_text())["features"]
    assert len(features) == len(scored.scores.coords)
    with openslide.OpenSlide(scored.path) as slide:
        for feature in features:
            polygon = shapely.geometry.shape(feature["geometry"])
            left, top, right, bottom = (int(edge) for edge in polygon.bounds)
            window = slide.read_region((left, top), 0, (right - left, bottom - top))
            told = feature["properties"]
            told = told.get("measurements", told)["attention_mean"]
            assert np.array(window.convert("RGB"))[..., 0].mean() == told
