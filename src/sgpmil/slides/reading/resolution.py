"""Resolution of slides: microns per pixel and magnification."""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

from sgpmil.errors import SlideError
from sgpmil.slides.reading.slide import Slide

FINEST_MPP, COARSEST_MPP = 0.02, 10.0
"""Microns a pixel that a microscope gives: from beyond 100× oil to 1×. Print resolutions that
programs write unasked are coarser (72 dpi is 353, 96 dpi 265, 2400 dpi 10.6 microns)."""

_SQUARE = 0.05
"""Largest relative difference of the sides of a pixel."""

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
    """Optics of the microscope, as a file states them.

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
    """Return the side of a pixel in microns if it is plausible and square, else None.

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
    """Return the side of a pixel in microns, from the pixels per unit of length.

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


Source = Literal["mpp", "objective", "given"]

NOMINAL = (80.0, 60.0, 40.0, 20.0, 10.0, 5.0, 2.5, 1.25)
"""Nominal magnifications of scanners."""

_MICRONS_AT_1X = 10.0
"""Microns per pixel at a magnification of 1, by convention: 0.25 at 40×."""

_SNAP = 0.15
_DIFFERENT = 0.10
_ROUNDING = 0.02
_COARSEST_GIVEN = 100.0


class SlideWarning(UserWarning):
    """A slide's file and the user state different resolutions."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Resolution of a slide.

    Args:
        mpp: Microns per level-0 pixel.
        magnification: Magnification of level 0, a nominal one where it is near one.
        source: Its source: the file's `mpp`, its `objective`, or `given` by the user.
    """

    mpp: float
    magnification: float
    source: Source


def nominal_magnification(mpp: float) -> float:
    r"""Return the magnification of a pixel size: $10/\mathrm{mpp}$, or a nominal one within 15 %.

    Example:
        >>> nominal_magnification(0.499), nominal_magnification(0.2277)
        (20.0, 40.0)
    """
    exact = _MICRONS_AT_1X / mpp
    nearest = min(NOMINAL, key=lambda nominal: abs(math.log(exact / nominal)))
    return nearest if abs(exact / nearest - 1) <= _SNAP else exact


def slide_resolution(
    slide: Slide, *, given_mpp: float | None = None, given_magnification: float | None = None
) -> Resolution:
    """Return the resolution of a slide. It is never guessed.

    The file's microns per pixel count first, then its objective power. A given resolution completes
    what the file does not state. If it contradicts the file by more than 10 %, it wins, with a
    warning, because the user gave it for this slide.

    Raises:
        SlideError: Nothing is known, or what is given is impossible.
    """
    given = _given(slide, given_mpp, given_magnification)
    stated = _stated(slide)
    if stated is None and given is None:
        raise SlideError(
            "Expected the microns per pixel or the objective power, but "
            f"'{slide.path}' says neither (or has pixels that are not square). Give "
            "the slide's own magnification (`slide_mag`, or `slide_mpp`, or in a `slide_list`)."
        )
    if given is None:
        assert stated is not None  # noqa: S101 (refused above)
        return stated
    if stated is None:
        return given
    if stated.source == "objective" and given_mpp is not None:
        # An objective is nominal: a scanner's 20 has pixels of .44 to .55 microns.
        agree = given.magnification == stated.magnification
        best = given
    else:
        agree = abs(given.mpp / stated.mpp - 1) <= _DIFFERENT
        if given_mpp is None:
            agree = abs(given.magnification / stated.magnification - 1) <= _DIFFERENT
        best = stated
    if agree:
        return best
    warnings.warn(
        f"'{slide.path}' says {_words(stated)}, but {_words(given)} was given; the given one "
        "is used.",
        SlideWarning,
        stacklevel=2,
    )
    return given


def level0_side(
    size: int,
    resolution: Resolution,
    *,
    target_magnification: float | None = None,
    target_mpp: float | None = None,
) -> int:
    r"""Return the side of a patch in level-0 pixels.

    For a magnification $m$ on a slide of magnification $m_0$ it is
    $\lfloor \mathrm{size}\, m_0 / m \rfloor$, as TRIDENT has it, in nominal magnifications; for a
    pixel size, $\mathrm{size} \cdot \mathrm{target} / \mathrm{mpp}$, rounded.

    Args:
        size: Side of the patch in pixels of the target.
        resolution: Resolution of the slide.
        target_magnification: Magnification of the target.
        target_mpp: Microns per pixel of the target; give this or the magnification.

    Raises:
        SlideError: The target is finer than the slide (by more than 2 % for a pixel size, which
            scanners do not keep better), or not positive, or not exactly one target is given.

    Example:
        >>> level0_side(256, Resolution(0.25, 40.0, "mpp"), target_magnification=20.0)
        512
    """
    if (target_magnification is None) == (target_mpp is None):
        raise SlideError(
            "Expected a target magnification or target microns per pixel, but got "
            f"{'neither' if target_mpp is None else 'both'}. Give one."
        )
    target = target_mpp if target_magnification is None else target_magnification
    if target is None or not math.isfinite(target) or target <= 0 or size < 1:
        raise SlideError(
            f"Expected a positive target and patch size, but got {target} and {size} px. Give "
            "positive ones."
        )
    slide = f"{resolution.magnification:g}× ({resolution.mpp:.4g} microns per pixel)"
    if target_magnification is not None:
        if target_magnification > resolution.magnification:
            raise SlideError(
                f"Expected a magnification of at most the slide's {slide}, but got "
                f"{target_magnification:g}×. Ask for less: enlarging adds no detail."
            )
        return int(size * resolution.magnification // target_magnification)
    if target < resolution.mpp * (1 - _ROUNDING):
        raise SlideError(
            f"Expected at least the microns per pixel of the slide's {slide}, but got {target:g}. "
            "Ask for more: enlarging adds no detail."
        )
    return max(1, round(size * target / resolution.mpp))


def _stated(slide: Slide) -> Resolution | None:
    if slide.mpp is not None:
        return Resolution(slide.mpp, nominal_magnification(slide.mpp), "mpp")
    if slide.objective is not None:
        mpp = _MICRONS_AT_1X / slide.objective
        return Resolution(mpp, nominal_magnification(mpp), "objective")
    return None


def _given(slide: Slide, mpp: float | None, magnification: float | None) -> Resolution | None:
    for name, value, most in (
        ("microns per pixel", mpp, _COARSEST_GIVEN),
        ("a magnification", magnification, 200.0),
    ):
        if value is not None and not 0 < value <= most:  # also refuses NaN
            raise SlideError(
                f"Expected {name} above 0 and at most {most:g} for '{slide.path}', but got "
                f"{value:g}. Give it in this unit."
            )
    if mpp is not None:
        nominal = nominal_magnification(mpp)
        if magnification is not None and abs(_MICRONS_AT_1X / mpp / magnification - 1) > _SNAP:
            raise SlideError(
                f"Expected microns per pixel and a magnification that agree for '{slide.path}', "
                f"but got {mpp:g}, which is {nominal:g}×, and {magnification:g}×. Give one."
            )
        return Resolution(float(mpp), float(magnification or nominal), "given")
    if magnification is not None:
        by_rule = _MICRONS_AT_1X / magnification
        return Resolution(by_rule, nominal_magnification(by_rule), "given")
    return None


def _words(resolution: Resolution) -> str:
    return f"{resolution.mpp:.4g} microns per pixel ({resolution.magnification:g}×)"
