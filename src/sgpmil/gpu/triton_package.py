"""Triton, imported where a kernel is launched and not before: it is slow to import.

It comes with torch on machines with a GPU, and wants a C compiler when it first launches a kernel.
Where one of them is absent, the plain torch code computes the same.
"""

import os
import shutil
from functools import cache
from importlib import import_module

__all__ = ["available"]


@cache
def available() -> bool:
    """Tell whether Triton can be used, which imports it where it can."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return False
    try:
        import_module("triton")
    except ImportError:
        return False
    return True
