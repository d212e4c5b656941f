"""STAMP's HDF5: `feats`, with coordinates in micrometres.

STAMP does not store the pixel size of the slide's level 0. Where a file has the attribute
`mpp`, coordinates become level-0 pixels; otherwise they stay micrometres, rounded, and so does
the patch side: the geometry is right, as of a slide of 1 µm a pixel.
"""

from pathlib import Path

import h5py

from sgpmil.bags.readers.hdf5 import Attributes, Hdf5Layout, peek_hdf5, read_hdf5
from sgpmil.bags.readers.hdf5_attributes import number_attribute, text_attribute
from sgpmil.bags.readers.raw import BagHeader, RawBag

__all__ = ["peek", "read"]


def read(path: Path) -> RawBag:
    """Read a file of STAMP's features folder."""
    return read_hdf5(path, _LAYOUT)


def peek(path: Path) -> BagHeader:
    """Read shape and attributes of a file of STAMP's features folder."""
    return peek_hdf5(path, _LAYOUT)


def _attributes(file: h5py.File) -> Attributes:
    mpp = number_attribute(file.attrs, "mpp")
    scale = 1.0 / mpp if mpp and text_attribute(file.attrs, "unit") == "um" else 1.0
    tile_size = number_attribute(file.attrs, "tile_size_um")
    return Attributes(
        encoder=text_attribute(file.attrs, "extractor"),
        patch_size=None if tile_size is None else round(tile_size * scale),
        coords_scale=scale,
    )


_LAYOUT = Hdf5Layout(feature_names=("feats", "patch_embeddings"), attributes=_attributes)
