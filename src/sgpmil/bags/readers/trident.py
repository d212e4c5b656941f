"""TRIDENT's HDF5: `features` and `coords`, with the geometry in the attributes of `coords`."""

from pathlib import Path

import h5py

from sgpmil.bags.readers.hdf5 import Attributes, Hdf5Layout, peek_hdf5, read_hdf5
from sgpmil.bags.readers.hdf5_attributes import number_attribute, text_attribute
from sgpmil.bags.readers.raw import BagHeader, RawBag

__all__ = ["is_trident", "peek", "read"]


def read(path: Path) -> RawBag:
    """Read a file of TRIDENT's features folder."""
    return read_hdf5(path, _LAYOUT)


def peek(path: Path) -> BagHeader:
    """Read shape and attributes of a file of TRIDENT's features folder."""
    return peek_hdf5(path, _LAYOUT)


def is_trident(file: h5py.File) -> bool:
    """Say whether a file with `features` carries TRIDENT's attributes."""
    features, coords = file.get("features"), file.get("coords")
    return (features is not None and "encoder" in features.attrs) or (
        coords is not None and "patch_size_level0" in coords.attrs
    )


def _attributes(file: h5py.File) -> Attributes:
    features, coords = file.get("features"), file.get("coords")
    encoder = None if features is None else text_attribute(features.attrs, "encoder")
    if coords is None:
        return Attributes(encoder=encoder)
    return Attributes(
        encoder=encoder,
        magnification=number_attribute(coords.attrs, "target_magnification"),
        patch_size=_level0_patch_size(coords.attrs),
    )


def _level0_patch_size(attributes: h5py.AttributeManager) -> int | None:
    stored = number_attribute(attributes, "patch_size_level0")
    if stored is not None:
        return round(stored)
    patch_size = number_attribute(attributes, "patch_size")
    level0 = number_attribute(attributes, "level0_magnification")
    target = number_attribute(attributes, "target_magnification")
    if patch_size is None or level0 is None or not target:
        return None
    return round(patch_size * level0 / target)


_LAYOUT = Hdf5Layout(feature_names=("features",), attributes=_attributes)
