"""Names of a package that are imported when they are first used.

torch takes a second or two to import, and 200 MB: a process that only decodes tiles, or a package
of which one small file is used, should not pay for what it never touches.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any


def names_on_demand(
    package: str, names_by_module: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package. Its modules are names of it, too.

    Args:
        package: The package's `__name__`.
        names_by_module: Names by the module that defines them, relative to the package; several
            are separated by spaces.

    Example:
        >>> get, names = names_on_demand("sgpmil", {"errors": "SgpmilError BagError"})
        >>> get("SgpmilError").__module__
        'sgpmil.errors'
        >>> get("SgpmilEror")
        Traceback (most recent call last):
        AttributeError: module 'sgpmil' has no attribute 'SgpmilEror'
    """
    homes = {name: module for module, names in names_by_module.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
            setattr(sys.modules[package], name, value)  # asked for once
            return value
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    def names() -> list[str]:
        here = sys.modules[package]
        modules = (module.name for module in iter_modules(here.__path__))
        return sorted({*vars(here), *homes, *(name for name in modules if name[0] != "_")})

    return get, names
