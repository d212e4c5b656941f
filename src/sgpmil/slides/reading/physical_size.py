"""The physical size of a pixel, as files state it."""

import math
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

__all__ = [
    "Optics",
    "mpp_of_density",
    "plausible_mpp",
    "positive_number",
    "read_aperio",
    "read_ome",
]

FINEST_MPP, COARSEST_MPP = 0.02, 10.0
"""Microns a pixel that a microscope gives: from beyond 100× oil to 1×. Print resolutions that
programs write unasked are coarser (72 dpi is 353, 96 dpi 265, 2400 dpi 10.6 microns)."""

_SQUARE = 0.05
"""How much the sides of a pixel may differ."""

_MICRONS = {
    "pm": 1e-6,
    "å": 1e-4,
    "nm": 1e-3,
    "um": 1.0,
    "micron": 1.0,
    "micrometer": 1.0,
    "micrometre": 1.0,
    "mm": 1e3,
    "cm": 1e4,
    "dm": 1e5,
    "m": 1e6,
    "thou": 25.4,
    "in": 25400.0,
    "inch": 25400.0,
}


@dataclass(frozen=True, slots=True)
class Optics:
    """What a file says of the microscope.

    Args:
        mpp: Microns a level-0 pixel; None where it is not said.
        objective: Power of the objective; None where it is not said.
        bits: Bits of a sample that are used; None where it is not said.
    """

    mpp: float | None = None
    objective: float | None = None
    bits: int | None = None


def positive_number(text: Any) -> float | None:
    """Read a positive number; None where there is none.

    Example:
        >>> positive_number("0.499"), positive_number("0"), positive_number("?")
        (0.499, None, None)
    """
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def plausible_mpp(x: float | None, y: float | None) -> float | None:
    """Give the side of a pixel in microns, if it is one of a microscope's square pixels.

    Args:
        x: Width of a pixel in microns.
        y: Height of a pixel in microns; None where only the width is known.

    Example:
        >>> plausible_mpp(0.25, 0.25), plausible_mpp(25400 / 72, 25400 / 72)
        (0.25, None)
    """
    if x is None:
        return None
    y = x if y is None else y
    mean = (x + y) / 2
    if abs(x - y) > _SQUARE * mean or not FINEST_MPP <= mean <= COARSEST_MPP:
        return None
    return mean


def mpp_of_density(x: float | None, y: float | None, unit: str) -> float | None:
    """Give the side of a pixel in microns from the pixels in a unit of length.

    Args:
        x: Pixels in a unit along x.
        y: Pixels in a unit along y.
        unit: Name of the unit.

    Example:
        >>> mpp_of_density(40000.0, 40000.0, "cm")
        0.25
    """
    microns = _in_microns(unit)
    if microns is None or not x:
        return None
    return plausible_mpp(microns / x, microns / y if y else None)


def read_ome(xml: str, size: tuple[int, int]) -> Optics:
    """Read what OME-XML says of the image of a given size.

    ``OME/Image/Pixels[@SizeX, @SizeY, @PhysicalSizeX, @PhysicalSizeXUnit, @SignificantBits]`` and
    ``OME/Instrument/Objective[@ID, @NominalMagnification]``, which the image refers to. XML that
    cannot be read says nothing.

    Args:
        xml: The document.
        size: Width and height of the image in level-0 pixels.
    """
    try:
        parser = ElementTree.XMLParser(target=_NoDoctype())  # noqa: S314 (a DTD is refused below)
        root = ElementTree.fromstring(xml, parser=parser)  # noqa: S314
    except (ElementTree.ParseError, ValueError):
        return Optics()
    powers = {
        element.get("ID"): positive_number(element.get("NominalMagnification"))
        for element in root.iter()
        if _name(element) == "Objective"
    }
    for image in root.iter():
        if _name(image) != "Image":
            continue
        pixels = next((e for e in image if _name(e) == "Pixels"), None)
        if pixels is None or (pixels.get("SizeX"), pixels.get("SizeY")) != (
            str(size[0]),
            str(size[1]),
        ):
            continue
        used = next((e for e in image if _name(e) == "ObjectiveSettings"), None)
        bits = positive_number(pixels.get("SignificantBits"))
        return Optics(
            plausible_mpp(_ome_length(pixels, "X"), _ome_length(pixels, "Y")),
            None if used is None else powers.get(used.get("ID")),
            None if bits is None else int(bits),
        )
    return Optics()


def read_aperio(description: str) -> Optics:
    """Read what Aperio's description of an image says: fields ``|MPP = 0.25|AppMag = 40|``.

    Args:
        description: The description.

    Example:
        >>> read_aperio("Aperio Image Library|AppMag = 40|MPP = 0.2525")
        Optics(mpp=0.2525, objective=40.0, bits=None)
    """
    fields = {}
    for field in description.split("|"):
        name, _, value = field.partition("=")
        fields[name.strip()] = positive_number(value)
    return Optics(plausible_mpp(fields.get("MPP"), None), fields.get("AppMag"))


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuses a document type, whose entities can blow a small file up to fill the memory."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ElementTree.ParseError("it declares a document type")


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]  # namespaces differ between versions of OME


def _ome_length(pixels: ElementTree.Element, axis: str) -> float | None:
    length = positive_number(pixels.get(f"PhysicalSize{axis}"))
    microns = _in_microns(pixels.get(f"PhysicalSize{axis}Unit", "µm"))
    return None if length is None or microns is None else length * microns


def _in_microns(unit: str) -> float | None:
    # The micro sign and the Greek letter look alike; ImageJ writes the escape of the former.
    plain = unit.strip().lower().replace("\\u00b5", "u").replace("µ", "u").replace("μ", "u")
    return _MICRONS.get(plain) or _MICRONS.get(plain.removesuffix("s"))
