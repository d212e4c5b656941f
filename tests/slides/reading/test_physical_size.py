import pytest

from sgpmil.slides.reading.physical_size import (
    Optics,
    mpp_of_density,
    plausible_mpp,
    positive_number,
    read_ome,
)

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
