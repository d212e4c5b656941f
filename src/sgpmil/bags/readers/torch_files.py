"""Loading an array saved by torch, without running what a pickle may hide."""

import codecs
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgpmil.errors import BagError

__all__ = ["load_array"]

# What torch raises on bytes that are no archive depends on where parsing stops.
_DAMAGE = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ImportError,
    ArithmeticError,
    zipfile.BadZipFile,
)


def load_array(path: Path, *, mapped: bool = False) -> Tensor | NDArray[Any]:
    """Load the tensor or numpy array of a `.pt` file.

    Args:
        path: File written by `torch.save`.
        mapped: Map the file into memory, so that a shape costs no reading.

    Raises:
        BagError: The file is damaged, holds something else, or asks to run code.
    """
    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            content = _load(path, mapped=mapped)
    except pickle.UnpicklingError as error:
        raise BagError(
            f"Expected a tensor or an array, but the file holds other Python objects, which "
            f"could run code and are not loaded ({path}). Save the features alone, as a tensor."
        ) from error
    except _DAMAGE as error:
        reason = str(error).split(". ")[0] or type(error).__name__
        raise BagError(
            f"Expected a file saved by torch, but got '{reason}' ({path}). "
            "It is probably truncated: extract the slide again."
        ) from error
    if isinstance(content, Tensor | np.ndarray):
        return content
    raise BagError(
        f"Expected a tensor or an array, but got {type(content).__name__} ({path}). "
        "Save the features alone, as a tensor."
    )


def _load(path: Path, *, mapped: bool) -> Any:
    # torch maps only its archive format; what was saved before torch 1.6 has to be read.
    mapped = mapped and zipfile.is_zipfile(path)
    with warnings.catch_warnings():
        # Of a pickle that another program wrote; what matters of it is refused all the same.
        warnings.filterwarnings("ignore", message="Detected pickle protocol")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)


def _numpy_globals() -> list[Any]:
    """Return what rebuilding a plain numeric array takes, under numpy 1's names and numpy 2's."""
    rebuild = np.empty(0).__reduce__()[0]
    numeric = [np.dtype(code) for code in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1")]
    return [
        (rebuild, "numpy.core.multiarray._reconstruct"),
        (rebuild, "numpy._core.multiarray._reconstruct"),
        np.ndarray,
        np.dtype,
        codecs.encode,
        *(type(dtype) for dtype in numeric),
    ]
