"""CLAM's two forms: HDF5 without attributes, and a tensor (or an array) saved by torch.

TRIDENT's own `.pt` files, a numpy array saved by torch, are read here as well.
"""

from pathlib import Path

import h5py

from sgpmil.bags.readers.hdf5 import Attributes, Hdf5Layout, peek_hdf5, read_hdf5
from sgpmil.bags.readers.hdf5_attributes import number_attribute
from sgpmil.bags.readers.raw import BagHeader, RawBag, as_features, bag_shape
from sgpmil.bags.readers.torch_files import load_array

__all__ = ["peek_h5", "peek_pt", "read_h5", "read_pt"]


def read_h5(path: Path) -> RawBag:
    """Read a file of CLAM's `h5_files`."""
    return read_hdf5(path, _LAYOUT)


def peek_h5(path: Path) -> BagHeader:
    """Read the shape of a file of CLAM's `h5_files`."""
    return peek_hdf5(path, _LAYOUT)


def read_pt(path: Path) -> RawBag:
    """Read a file of CLAM's `pt_files`, which has no coordinates."""
    return RawBag(features=as_features(load_array(path), path))


def peek_pt(path: Path) -> BagHeader:
    """Read the shape of a file of CLAM's `pt_files`."""
    array = load_array(path, mapped=True)
    num_instances, feature_dim = bag_shape(array.shape, path)
    return BagHeader(num_instances, feature_dim, dtype=str(array.dtype).removeprefix("torch."))


def _attributes(file: h5py.File) -> Attributes:
    coords = file.get("coords")
    if coords is None:
        return Attributes()
    # Present where features were written into the file of coordinates.
    patch_size = number_attribute(coords.attrs, "patch_size")
    downsample = number_attribute(coords.attrs, "downsample") or 1.0
    return Attributes(patch_size=None if patch_size is None else round(patch_size * downsample))


_LAYOUT = Hdf5Layout(feature_names=("features",), attributes=_attributes)
