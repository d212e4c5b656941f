"""The packages of the optional part `slides`."""

from importlib.util import find_spec

from sgpmil.errors import MissingPartError

__all__ = ["require_package"]


def require_package(name: str) -> None:
    """Refuse to go on without a package of the part `slides`.

    Args:
        name: Name of the package.

    Raises:
        MissingPartError: It is not installed.

    Example:
        >>> require_package("numpy")
    """
    if find_spec(name) is None:
        raise MissingPartError(
            f"Expected the package '{name}' to work with slides, but it is not installed. "
            "Install it with: pip install 'sgpmil[slides]'."
        )
