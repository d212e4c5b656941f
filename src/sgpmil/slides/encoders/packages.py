"""The packages that encoders need, loaded when they are first needed."""

from importlib.util import find_spec

from sgpmil.errors import MissingPartError
from sgpmil.torchvision_import import mend_torchvision

__all__ = ["require"]


def require(name: str, install: str = "'sgpmil[encoders]'") -> None:
    """Refuse to go on without a package; make it importable where torchvision does not fit torch.

    Args:
        name: Name of the package.
        install: What pip is to install.

    Raises:
        MissingPartError: It is not installed.
    """
    if find_spec(name) is None:
        raise MissingPartError(
            f"Expected the package '{name}' to encode patches, but it is not installed. "
            f"Install it with: pip install {install}."
        )
    mend_torchvision()
