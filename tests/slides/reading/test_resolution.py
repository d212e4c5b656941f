import math
import warnings
from pathlib import Path

import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

from sgpmil.errors import SlideError
from sgpmil.slides.reading import open_slide
from sgpmil.slides.reading.image_file import ImageSlide
from sgpmil.slides.reading.resolution import (
    NOMINAL,
    Optics,
    Resolution,
    SlideWarning,
    level0_side,
    mpp_of_density,
    nominal_magnification,
    plausible_mpp,
    positive_number,
    read_ome,
    slide_resolution,
)

from .slide_files import CMU, TCGA, needs_slides

OME = """<?xml version="1.0" encoding="UTF-8"?>
<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">
 <Instrument ID="Instrument:0"><Objective ID="Objective:1" NominalMagnification="5"/>
  <Objective ID="Objective:0" NominalMagnification="40.0"/></Instrument>
 <Image ID="Image:1" Name="label"><Pixels ID="Pixels:1" SizeX="10" SizeY="20"
  PhysicalSizeX="7" PhysicalSizeY="7"/></Image>
 <Image ID="Image:0"><ObjectiveSettings ID="Objective:0"/>
  <Pixels ID="Pixels:0" SizeX="300" SizeY="200" {attributes}/></Image>
</OME>"""


def read(attributes):
    return read_ome(OME.format(attributes=attributes), (300, 200))


@pytest.mark.parametrize(
    ("length", "unit"),
    [
        ("0.25", None),
        ("0.25", "µm"),
        ("0.25", "μm"),
        ("250", "nm"),
        ("2.5e-4", "mm"),
        ("0.000025", "cm"),
        ("2500", "Å"),
        ("2.5e-7", "m"),
    ],
)
def test_units_of_ome(length, unit):
    attributes = f'PhysicalSizeX="{length}" PhysicalSizeY="{length}"'
    if unit:
        attributes += f' PhysicalSizeXUnit="{unit}" PhysicalSizeYUnit="{unit}"'
    assert read(attributes).mpp == pytest.approx(0.25)


def test_the_objective_and_bits_of_the_image_asked_for():
    found = read('PhysicalSizeX="0.5" SignificantBits="12"')
    assert found == Optics(0.5, 40.0, 12)
    assert read_ome(OME.format(attributes=""), (10, 20)) == Optics(7.0)
    assert read_ome(OME.format(attributes=""), (11, 20)) == Optics()


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        'PhysicalSizeX="0"',
        'PhysicalSizeX="nan"',
        'PhysicalSizeX="1" PhysicalSizeXUnit="pixel"',
        'PhysicalSizeX="1" PhysicalSizeXUnit="reference frame"',
        'PhysicalSizeX="0.25" PhysicalSizeY="0.5"',
        'PhysicalSizeX="353"',
    ],
)
def test_what_says_nothing_of_the_size(attributes):
    assert read(attributes).mpp is None


def test_bad_xml_says_nothing():
    bomb = '<!DOCTYPE a [<!ENTITY b "c">]>' + OME.format(attributes='PhysicalSizeX="0.25"')[39:]
    for text in ("", "<OME", "no xml", bomb):
        assert read_ome(text, (300, 200)) == Optics()


@pytest.mark.parametrize("dpi", [72, 96, 150, 300, 600, 1200, 2400])
def test_resolutions_of_print_are_ignored(dpi):
    assert mpp_of_density(float(dpi), float(dpi), "inch") is None


@pytest.mark.parametrize(
    ("density", "unit", "mpp"),
    [
        (40000.0, "cm", 0.25),
        (101600.0, "inch", 0.25),
        (4.0, "micron", 0.25),
        (2.0, "\\u00B5m", 0.5),
        (2.0, "microns", 0.5),
        (2.0, "", None),
        (None, "cm", None),
        (0.0, "cm", None),
    ],
)
def test_density(density, unit, mpp):
    assert mpp_of_density(density, density, unit) == (mpp and pytest.approx(mpp))


def test_pixels_must_be_square():
    assert plausible_mpp(0.25, 0.255) == pytest.approx(0.2525)
    assert plausible_mpp(0.25, None) == 0.25
    assert plausible_mpp(0.25, 0.3) is None
    assert plausible_mpp(None, 0.3) is None
    assert plausible_mpp(0.001, 0.001) is None


@pytest.mark.parametrize("text", [None, "", "abc", "inf", "nan", "-1", "0"])
def test_no_positive_number(text):
    assert positive_number(text) is None


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
