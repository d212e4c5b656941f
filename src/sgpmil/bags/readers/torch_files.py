"""Readers of files saved by torch: CLAM's tensors, slideflow's pairs of files, checkpoints.

Code that a pickle may hide never runs. TRIDENT's own `.pt` files, a numpy array saved by torch,
are read as CLAM's.
"""

import codecs
import pickle
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgpmil.bags.files import regular_file
from sgpmil.bags.readers.numpy_files import load_npz
from sgpmil.bags.readers.own_data import refuse_inflated_zip
from sgpmil.bags.readers.raw import (
    BagHeader,
    RawBag,
    as_coords,
    as_features,
    bag_shape,
    refuse_no_numbers,
)
from sgpmil.errors import BagError, SgpmilError, damage_as


class ClamTensors:
    """CLAM's `pt_files`: a tensor of features, without coordinates."""

    @staticmethod
    def read(path: Path) -> RawBag:
        """Read a tensor."""
        return RawBag(features=as_features(load_array(path), path))

    @staticmethod
    def peek(path: Path) -> BagHeader:
        """Read the shape of a tensor."""
        array = load_array(path, mapped=True)
        if isinstance(array, Tensor):
            refuse_no_numbers(array, path)
        num_instances, feature_dim = bag_shape(array.shape, path)
        return BagHeader(num_instances, feature_dim, dtype=str(array.dtype).removeprefix("torch."))


class Slideflow:
    """slideflow's pair of files: `{slide}.pt`, and tile locations in `{slide}.index.npz`."""

    @staticmethod
    def index_path(path: Path) -> Path:
        """Return the file of tile locations of a bag.

        Example:
            >>> Slideflow.index_path(Path("TCGA-1.A.pt")).name
            'TCGA-1.A.index.npz'
        """
        return path.with_name(f"{path.stem}.index.npz")

    @staticmethod
    def read(path: Path) -> RawBag:
        """Read a tensor and its tile locations."""
        raw = ClamTensors.read(path)
        index = Slideflow.index_path(path)
        arrays = load_npz(index)
        if "arr_0" not in arrays:
            raise BagError(
                f"Expected an array 'arr_0' of tile locations, but got {sorted(arrays)} ({index}). "
                "Extract the slide again, or remove the index."
            )
        return replace(raw, coords=as_coords(arrays["arr_0"], raw.features.shape[0], index))

    @staticmethod
    def peek(path: Path) -> BagHeader:
        """Read the shape of a tensor that has tile locations."""
        return replace(ClamTensors.peek(path), has_coords=True)


def load_array(path: Path, *, mapped: bool = False) -> Tensor | NDArray[Any]:
    """Load the tensor or numpy array of a `.pt` file.

    Args:
        path: File written by `torch.save`.
        mapped: Map the file into memory, so that a shape costs no reading.

    Raises:
        BagError: The file is damaged, holds something else, or asks to run code.
    """
    # What torch raises on bytes that are no archive depends on where parsing stops.
    advice = "It is probably truncated: extract the slide again."
    with damage_as(BagError, "a file saved by torch", path, advice):
        try:
            with torch.serialization.safe_globals(_numpy_globals()):
                content = load_torch(path, mapped=mapped)
        except pickle.UnpicklingError as error:
            raise BagError(
                f"Expected a tensor or an array, but the file holds other Python objects, which "
                f"could run code and are not loaded ({path}). Save the features alone, as a tensor."
            ) from error
    if isinstance(content, Tensor | np.ndarray):
        return content
    raise BagError(
        f"Expected a tensor or an array, but got {type(content).__name__} ({path}). "
        "Save the features alone, as a tensor."
    )


def load_torch(path: Path, kind: type[SgpmilError] = BagError, *, mapped: bool = False) -> Any:
    """Load what `torch.save` wrote, without running code from it: every such file is read here.

    Args:
        path: The file.
        kind: Error to raise where it unfolds to fill the memory.
        mapped: Map the file into memory, so that a shape costs no reading.

    Raises:
        SgpmilError: It is far larger than it is on disk.
        OSError: It is missing.
        Exception: It is damaged, or asks to run code; what torch raises depends on where it stops.
    """
    refuse_inflated_zip(regular_file(path), kind)
    # torch maps only its archive format; files from before torch 1.6 have to be read.
    mapped = mapped and zipfile.is_zipfile(path)
    with warnings.catch_warnings():
        # Another program wrote the pickle; torch refuses its dangerous parts all the same.
        warnings.filterwarnings("ignore", message="Detected pickle protocol")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)


def _numpy_globals() -> list[Any]:
    """List what torch may call to rebuild a numeric array, under the names of numpy 1 and 2."""
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
