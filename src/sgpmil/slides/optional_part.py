"""Packages of the optional part `slides`, loaded when they are first needed."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sgpmil.errors import MissingPartError
from sgpmil.installation import install_command

if TYPE_CHECKING:
    from shapely import Geometry as Geometry
else:
    Geometry = Any  # shapely may not be installed


def require_package(
    name: str, *, purpose: str = "work with slides", part: str = "slides", install: str = ""
) -> None:
    """Raise an error that says how to install a package, unless it is installed.

    Args:
        name: The package.
        purpose: What it is needed for.
        part: Optional part of this package that it belongs to.
        install: What to install where it belongs to none.

    Raises:
        MissingPartError: It is not installed.

    Example:
        >>> require_package("numpy")
    """
    if find_spec(name) is None:
        raise MissingPartError(
            f"Expected the package '{name}' to {purpose}, but it is not installed. "
            f"Install it with: {f'pip install {install}' if install else install_command(part)}."
        )
