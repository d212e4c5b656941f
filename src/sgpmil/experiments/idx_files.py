"""Reading MNIST's idx files: a magic number, the sizes, and then the bytes themselves."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sgpmil.errors import BagError

__all__ = ["read_idx_images", "read_idx_labels"]

_UNSIGNED_BYTES = 0x08


def read_idx_images(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of images (images, rows, columns).

    Raises:
        BagError: The file is missing, damaged, truncated or not of images.
    """
    return _read(path, 3, "images")


def read_idx_labels(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of labels.

    Raises:
        BagError: The file is missing, damaged, truncated or not of labels.
    """
    return _read(path, 1, "labels")


def _read(path: Path, num_axes: int, what: str) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) as file:
            content = file.read()
    except FileNotFoundError as error:
        raise BagError(
            f"Expected MNIST's {what} in {path}, but there is no such file. Give the folder with "
            "the four gzipped idx files."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise BagError(
            f"Expected MNIST's {what} as a gzipped idx file in {path}, but it is damaged or "
            f"truncated ({error}). Download it again."
        ) from error
    header = 4 + 4 * num_axes
    magic = (_UNSIGNED_BYTES << 8) + num_axes
    found = int.from_bytes(content[:4], "big")
    if len(content) < header or found != magic:
        raise BagError(
            f"Expected an idx file of {what} (magic number {magic}) in {path}, but got magic "
            f"number {found}. Check that it is not another of MNIST's files."
        )
    shape = struct.unpack(f">{num_axes}I", content[4:header])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - header != expected:
        raise BagError(
            f"Expected {expected} bytes of {what} for the sizes {shape} in {path}, but got "
            f"{len(content) - header}: it is truncated or damaged. Download it again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
