"""Coordinates and HDF5 attributes as other tools store them.

This module imports neither torch nor HDF5: the processes that read slides import it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgpmil.errors import BagError
from sgpmil.shapes import Int

FARTHEST = 2**31 - 1
"""Largest coordinate or side of a patch in pixels: no slide is larger."""


def whole_coordinates(
    array: NDArray[Any], num_instances: int, path: Path, scale: float = 1.0
) -> Int[np.ndarray, "N 2"]:
    """Convert stored coordinates to whole numbers, rounding where they are not.

    Raises:
        BagError: The coordinates are no numbers of a slide's pixels, or not two for each instance.
    """
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if num_instances == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if array.shape != (num_instances, 2):
        raise BagError(
            f"Expected coordinates of shape ({num_instances}, 2), one (x, y) for each instance, "
            f"but got {array.shape} ({path}). Extract the slide again."
        )
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise BagError(
            f"Expected finite numbers as coordinates, but got NaN, infinity or "
            f"{array.dtype} ({path}). Extract the slide again."
        )
    if scale != 1.0 or array.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.rint(array.astype(np.float64) * scale)
    low, high = array.min(), array.max()
    if not (low >= -FARTHEST and high <= FARTHEST):  # NaN is neither
        raise BagError(
            f"Expected coordinates of a slide, within ±{FARTHEST}, but got {low:g} to {high:g} "
            f"({path}). Extract the slide again."
        )
    return np.array(array, dtype=np.int64, order="C")


def number_attribute(attributes: Mapping[str, Any], name: str) -> float | None:
    """Return an attribute as a number; None where it is absent or is no number.

    TRIDENT stores an unknown value as the text "None".
    """
    value = _first(attributes.get(name))
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def positive_attribute(attributes: Mapping[str, Any], name: str) -> float | None:
    """Return an attribute as a number; None where it is absent, or no finite number above 0."""
    value = number_attribute(attributes, name)
    return value if value is not None and 0 < value < math.inf else None


def whole_side(value: float, place: Path | str) -> int:
    """Return the side of a patch in whole pixels.

    Raises:
        BagError: It is not between one pixel and the size of a slide.

    Example:
        >>> whole_side(511.6, "a.h5")
        512
    """
    if not 0.5 <= value <= FARTHEST:  # NaN is neither
        raise BagError(
            f"Expected the side of a patch as pixels, from 1 to {FARTHEST}, but got {value:g} "
            f"({place}). Correct it, or extract the slide again."
        )
    return max(1, round(value))


def text_attribute(attributes: Mapping[str, Any], name: str) -> str | None:
    """Return an attribute as text; None where it is absent or the text "None"."""
    value = _first(attributes.get(name))
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    return None if value is None or str(value) in ("", "None") else str(value)


def _first(value: Any) -> Any:
    # Attributes written by other tools are often arrays of one value (or a pair x, y).
    size = getattr(value, "size", 1)
    if size == 0:
        return None
    return value.flat[0] if hasattr(value, "flat") else value
