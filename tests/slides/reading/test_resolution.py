import math
import warnings
from pathlib import Path

import pytest

pytest.importorskip("openslide", reason="pip install 'sgpmil[slides]'")
pytest.importorskip("cv2", reason="pip install 'sgpmil[slides]'")

from sgpmil.errors import SlideError
from sgpmil.slides.reading import open_slide
from sgpmil.slides.reading.image_file import ImageSlide
from sgpmil.slides.reading.resolution import (
    NOMINAL,
    Resolution,
    SlideWarning,
    level0_side,
    nominal_magnification,
    slide_resolution,
)

from .slide_files import CMU, TCGA, needs_slides


class Stated(ImageSlide):
    """A slide that says this of itself."""

    def __init__(self, mpp=None, objective=None):
        self.path = Path("a slide.svs")
        self.mpp, self.objective = mpp, objective


@pytest.mark.parametrize(
    ("mpp", "magnification"),
    # As scanners write them: Aperio, Hamamatsu, Philips, 3DHISTECH, Ventana.
    [
        (0.2525, 40),
        (0.499, 20),
        (0.5034, 20),
        (0.2277, 40),
        (0.4531, 20),
        (0.25, 40),
        (0.1214, 80),
        (0.243, 40),
        (0.465, 20),
        (1.0, 10),
        (2.0, 5),
        (4.0, 2.5),
        (8.0, 1.25),
    ],
)
def test_nominal_magnifications(mpp, magnification):
    assert nominal_magnification(mpp) == magnification


def test_what_is_near_no_nominal_magnification_stays_itself():
    assert nominal_magnification(1 / 3) == pytest.approx(30)
    assert nominal_magnification(10 / 23.1) == pytest.approx(23.1)
    for nominal in NOMINAL:
        assert nominal_magnification(10 / nominal) == nominal
        assert nominal_magnification(10 / (nominal * 1.149)) == nominal


@needs_slides
def test_real_slides():
    with open_slide(CMU) as slide:
        assert slide_resolution(slide) == Resolution(0.499, 20.0, "mpp")
    with open_slide(TCGA) as slide:
        with pytest.raises(SlideError, match=r"tcga-cr.*svs' says neither.* Give"):
            slide_resolution(slide)
        given = slide_resolution(slide, given_magnification=20.0)
        assert given == Resolution(0.5, 20.0, "given")


def test_the_order_of_sources():
    assert slide_resolution(Stated(0.23, 20.0)) == Resolution(0.23, 40.0, "mpp")
    assert slide_resolution(Stated(None, 20.0)) == Resolution(0.5, 20.0, "objective")
    assert slide_resolution(Stated(), given_mpp=0.26) == Resolution(0.26, 40.0, "given")
    both = slide_resolution(Stated(), given_mpp=0.26, given_magnification=40.0)
    assert both == Resolution(0.26, 40.0, "given")


def test_what_is_given_and_agrees_changes_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stated = Resolution(0.2525, 40.0, "mpp")
        assert slide_resolution(Stated(0.2525), given_mpp=0.25) == stated
        assert slide_resolution(Stated(0.2525), given_magnification=40.0) == stated
        # An objective is nominal only: a given pixel size says more.
        found = slide_resolution(Stated(None, 20.0), given_mpp=0.4531)
        assert found == Resolution(0.4531, 20.0, "given")


@pytest.mark.parametrize(
    ("stated", "given", "expected"),
    [
        ((0.5, None), {"given_mpp": 0.25}, Resolution(0.25, 40.0, "given")),
        ((0.5, None), {"given_mpp": 0.56}, Resolution(0.56, 20.0, "given")),
        ((0.5, None), {"given_magnification": 40.0}, Resolution(0.25, 40.0, "given")),
        ((None, 20.0), {"given_magnification": 40.0}, Resolution(0.25, 40.0, "given")),
        ((None, 20.0), {"given_mpp": 0.25}, Resolution(0.25, 40.0, "given")),
    ],
)
def test_what_is_given_wins_with_a_warning(stated, given, expected):
    with pytest.warns(
        SlideWarning, match=r"'a slide.svs' says 0\.5 microns .*\(20×\), but .*given"
    ):
        assert slide_resolution(Stated(*stated), **given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"given_mpp": 0.0}, "but got 0"),
        ({"given_mpp": -1.0}, "but got -1"),
        ({"given_mpp": math.nan}, "but got nan"),
        ({"given_mpp": 250.0}, "microns per pixel above 0 and at most 100 .*but got 250"),
        ({"given_magnification": math.inf}, "but got inf"),
        ({"given_magnification": 40.0, "given_mpp": 0.5}, "0.5, which is 20×, and 40×"),
    ],
)
def test_what_is_given_and_impossible(given, words):
    with pytest.raises(SlideError, match=words):
        slide_resolution(Stated(), **given)


@pytest.mark.parametrize("size", [224, 256, 512, 1000])
@pytest.mark.parametrize("level0", [80.0, 60.0, 40.0, 20.0, 10.0, 2.5])
def test_sides_for_magnifications_as_trident_has_them(size, level0):
    resolution = Resolution(10 / level0, level0, "mpp")
    for target in (40, 20, 10, 5, 2.5, 1.25):
        if target <= level0:
            side = level0_side(size, resolution, target_magnification=float(target))
            assert side == size * level0 // target


def test_sides_for_pixel_sizes():
    resolution = Resolution(0.499, 20.0, "mpp")
    assert level0_side(256, resolution, target_mpp=1.0) == 513
    assert level0_side(256, resolution, target_mpp=0.499) == 256
    assert level0_side(256, resolution, target_mpp=0.49) == 251  # finer by less than 2 %
    assert level0_side(256, Resolution(0.25, 40.0, "mpp"), target_mpp=0.5) == 512


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"target_magnification": 40.0}, r"at most the slide's 20× \(0\.499 .*but got 40×"),
        ({"target_mpp": 0.25}, r"slide's 20× \(0\.499 microns per pixel\), but got 0\.25"),
        ({"target_mpp": 0.0}, "positive target"),
        ({"target_magnification": -5.0}, "positive target"),
        ({"target_magnification": math.nan}, "positive target"),
        ({}, "but got neither"),
        ({"target_mpp": 1.0, "target_magnification": 10.0}, "but got both"),
    ],
)
def test_impossible_targets(target, words):
    with pytest.raises(SlideError, match=words):
        level0_side(256, Resolution(0.499, 20.0, "mpp"), **target)
