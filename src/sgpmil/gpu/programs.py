"""Triton programs, which are compiled at their first launch.

Triton comes with torch on machines with a GPU, and is slow to import. A module that defines
programs is imported everywhere, so Triton is imported at the first launch and not before. It needs
a C compiler then. Where Triton or a compiler is absent, plain torch code computes the same.

No program writes where another writes, and sums over programs are taken in an order that depends on
the shapes alone: the same input gives the same result. Row numbers are 64-bit, because the product
of a row number and a row's width can exceed 32 bits.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib import import_module
from inspect import get_annotations
from types import FunctionType
from typing import Any

from torch import Tensor


def runs_triton(values: Tensor) -> bool:
    """Return whether Triton programs can compute with a tensor: it is on a GPU with Triton."""
    return values.device.type == "cuda" and is_available()


@cache
def is_available() -> bool:
    """Return whether Triton can be used; imports it where it can."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return False
    try:
        import_module("triton")
    except ImportError:
        return False
    return True


class Program:
    """A function in Triton's language. ``program[grid](...)`` launches it.

    Args:
        function: The function. Its module names Triton's language ``tl``, for annotations alone.
        do_not_specialize: Arguments for whose values Triton must not compile it anew.
    """

    def __init__(self, function: FunctionType, do_not_specialize: Sequence[str]) -> None:
        self._function = function
        self._do_not_specialize = tuple(do_not_specialize)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return self.compiled[grid]

    @cached_property
    def compiled(self) -> Any:
        """Triton's own object of the program."""
        triton, language = import_module("triton"), import_module("triton.language")
        given = self._function
        names = [name for name in given.__code__.co_names if name in given.__globals__]
        scope = {name: given.__globals__[name] for name in names}
        for name, value in scope.items():
            if isinstance(value, Program):  # called by this one
                scope[name] = value.compiled
        scope |= {"tl": language, "__name__": given.__module__}
        function = FunctionType(given.__code__, scope, given.__name__)
        function.__annotations__ = get_annotations(given, globals=scope, eval_str=True)
        return triton.jit(function, do_not_specialize=self._do_not_specialize)


def program(*, do_not_specialize: Sequence[str] = ()) -> Callable[[Any], Program]:
    """Declare a function to be a Triton program; see `Program`."""
    return lambda function: Program(function, do_not_specialize)


def ceil_div(number: int, size: int) -> int:
    """Divide and round up.

    Example:
        >>> ceil_div(5, 4)
        2
    """
    return -(-number // size)


def power_of_two(number: int, least: int = 1) -> int:
    """Round up to a power of two. Products on tensor cores take sizes of at least 16.

    Example:
        >>> power_of_two(5), power_of_two(5, 16), power_of_two(80)
        (8, 16, 128)
    """
    return max(least, 1 << (number - 1).bit_length())
