"""Triton, imported where a kernel is launched and not before: it is slow to import.

It comes with torch on machines with a GPU. Where it is absent, the plain torch code computes the
same.
"""

from functools import cache
from importlib import import_module

__all__ = ["available"]


@cache
def available() -> bool:
    """Tell whether Triton can be imported, which imports it where it can."""
    try:
        import_module("triton")
    except ImportError:
        return False
    return True
