"""Attributes in HDF5 files, as other tools wrote them."""

from typing import Any

import h5py

__all__ = ["number_attribute", "text_attribute"]


def number_attribute(attributes: h5py.AttributeManager, name: str) -> float | None:
    """Return an attribute as a number; None where it is absent or is no number.

    TRIDENT stores an unknown value as the text "None".
    """
    value = _first(attributes.get(name))
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def text_attribute(attributes: h5py.AttributeManager, name: str) -> str | None:
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
