"""Names of a package that are imported when they are first used.

torch takes a second or two to import, and 200 MB: a process that only decodes tiles, or a package
of which one small file is used, should not pay for what it never touches.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["names_on_demand"]


def names_on_demand(
    package: str, homes: Mapping[str, str], rooms: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    Args:
        package: The package's `__name__`.
        homes: The module each name is defined in, relative to the package.
        rooms: Modules of the package that are names of it too.

    Example:
        >>> get, names = names_on_demand("sgpmil", {"SgpmilError": "errors"})
        >>> get("SgpmilError").__module__
        'sgpmil.errors'
        >>> get("SgpmilEror")
        Traceback (most recent call last):
        AttributeError: module 'sgpmil' has no attribute 'SgpmilEror'
    """

    def get(name: str) -> Any:
        if name in rooms:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # asked for once
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *rooms})

    return get, names
