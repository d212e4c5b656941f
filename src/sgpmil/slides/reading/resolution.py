"""How large a pixel of a slide is, and how large a patch on it."""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

from sgpmil.errors import SlideError
from sgpmil.slides.reading.slide import Slide

__all__ = ["Resolution", "SlideWarning", "level0_side", "nominal_magnification", "slide_resolution"]

Source = Literal["mpp", "objective", "given"]

NOMINAL = (80.0, 60.0, 40.0, 20.0, 10.0, 5.0, 2.5, 1.25)
"""Magnifications that scanners are said to have."""

_MICRONS_AT_1X = 10.0
"""Microns a pixel at a magnification of 1, by convention: 0.25 at 40×."""

_SNAP = 0.15
_DIFFERENT = 0.10
_ROUNDING = 0.02
_COARSEST_GIVEN = 100.0


class SlideWarning(UserWarning):
    """A slide's file says one thing, and the user another."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """How large a level-0 pixel of a slide is.

    Args:
        mpp: Microns a level-0 pixel.
        magnification: Magnification of level 0, a nominal one where it is near one.
        source: What it follows from: the file's `mpp`, its `objective`, or what was `given`.
    """

    mpp: float
    magnification: float
    source: Source


def nominal_magnification(mpp: float) -> float:
    r"""Give the magnification of a pixel size: $10/\mathrm{mpp}$, or a nominal one within 15 %.

    Args:
        mpp: Microns a pixel.

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
    """Say how large a pixel of a slide is; it is never guessed.

    The file's microns a pixel count first, then its objective power. What is given fills in what
    the file does not say; where it contradicts the file by more than 10 %, it wins, with a
    warning, since it was said of this slide.

    Args:
        slide: The slide.
        given_mpp: Microns a level-0 pixel, from elsewhere.
        given_magnification: Magnification of level 0, from elsewhere.

    Raises:
        SlideError: Nothing is known, or what is given is impossible.
    """
    given = _given(slide, given_mpp, given_magnification)
    stated = _stated(slide)
    if stated is None and given is None:
        raise SlideError(
            "Expected the microns per pixel or the objective power, but "
            f"'{slide.path}' says neither (or has pixels that are not square). Give "
            "the slide's own magnification (--slide-mag, or --slide-mpp, or in a --list)."
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
    r"""Give the side of a patch in level-0 pixels.

    For a magnification $m$ on a slide of magnification $m_0$ it is
    $\lfloor \mathrm{size}\, m_0 / m \rfloor$, as TRIDENT has it, in nominal magnifications; for a
    pixel size, $\mathrm{size} \cdot \mathrm{target} / \mathrm{mpp}$, rounded.

    Args:
        size: Side of the patch in pixels of the target.
        resolution: Resolution of the slide.
        target_magnification: Magnification of the target.
        target_mpp: Microns a pixel of the target; give this or the magnification.

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
