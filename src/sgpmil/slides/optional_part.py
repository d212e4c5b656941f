"""Packages of the optional part `slides`, loaded when they are first needed."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sgpmil.errors import MissingPartError

if TYPE_CHECKING:
    from shapely import Geometry as Geometry
else:
    Geometry = Any  # shapely may not be installed


def require_package(
    name: str, *, purpose: str = "work with slides", install: str = "'sgpmil[slides]'"
) -> None:
    """Raise an error that says how to install a package, unless it is installed.

    Raises:
        MissingPartError: It is not installed.

    Example:
        >>> require_package("numpy")
    """
    if find_spec(name) is None:
        raise MissingPartError(
            f"Expected the package '{name}' to {purpose}, but it is not installed. "
            f"Install it with: pip install {install}."
        )
