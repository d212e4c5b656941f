"""Readers of HDF5 files: TRIDENT, CLAM and STAMP.

They differ in the name of the features and in the attributes that describe the instances.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
from numpy.typing import NDArray

from sgpmil.bags.readers.own_data import own_dataset, refuse_missing_data
from sgpmil.bags.readers.raw import (
    BagHeader,
    RawBag,
    as_coords,
    as_features,
    as_instance_labels,
    bag_shape,
)
from sgpmil.bags.readers.stored_values import (
    number_attribute,
    positive_attribute,
    text_attribute,
    whole_side,
)
from sgpmil.errors import BagError, damage_as


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of a file that describe its instances.

    Args:
        encoder: Name of the patch encoder.
        magnification: Magnification the instances were cut at.
        patch_size: Side of an instance in the unit of the coordinates as read.
        coords_scale: Factor from stored coordinates to coordinates as read.
    """

    encoder: str | None = None
    magnification: float | None = None
    patch_size: int | None = None
    coords_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Datasets:
    """The datasets of a bag in an open file.

    Args:
        path: The file.
        file: The open file.
        features: Embeddings of the instances.
        coords: Their corners, where stored.
        instance_labels: Their classes, where stored.
    """

    path: Path
    file: h5py.File
    features: h5py.Dataset
    coords: h5py.Dataset | None
    instance_labels: h5py.Dataset | None


@dataclass(frozen=True, slots=True)
class Hdf5Reader:
    """A reader of one HDF5 format.

    Args:
        feature_names: Names the features may have, the preferred one first.
        attributes: Reads the attributes of an open file.
    """

    feature_names: tuple[str, ...]
    attributes: Callable[[Datasets], Attributes]

    def read(self, path: Path) -> RawBag:
        """Read the arrays of a bag.

        Raises:
            BagError: The file is damaged or does not hold a bag.
        """
        with open_hdf5(path) as file:
            found = self._datasets(file, path)
            attributes = self.attributes(found)
            features = as_features(_content(found.features, path), path)
            num_instances = features.shape[0]
            return RawBag(
                features=features,
                coords=None
                if found.coords is None
                else as_coords(
                    _content(found.coords, path), num_instances, path, attributes.coords_scale
                ),
                patch_size=attributes.patch_size,
                instance_labels=None
                if found.instance_labels is None
                else as_instance_labels(_content(found.instance_labels, path), num_instances, path),
            )

    def peek(self, path: Path) -> BagHeader:
        """Read a bag's shape and attributes, not its features.

        Raises:
            BagError: The file is damaged or does not hold a bag.
        """
        with open_hdf5(path) as file:
            found = self._datasets(file, path)
            refuse_missing_data(found.features, path)
            attributes = self.attributes(found)
            num_instances, feature_dim = bag_shape(found.features.shape, path)
            return BagHeader(
                num_instances=num_instances,
                feature_dim=feature_dim,
                dtype=str(found.features.dtype),
                encoder=attributes.encoder,
                magnification=attributes.magnification,
                patch_size=attributes.patch_size,
                has_coords=found.coords is not None,
                has_instance_labels=found.instance_labels is not None,
            )

    def _datasets(self, file: h5py.File, path: Path) -> Datasets:
        for name in self.feature_names:
            features = own_dataset(file, name, path)
            if features is not None:
                others = (own_dataset(file, name, path) for name in ("coords", "instance_labels"))
                return Datasets(path, file, features, *others)
        raise BagError(
            f"Expected a dataset '{self.feature_names[0]}', but got {sorted(file)} ({path}). "
            "Give the embeddings of the slide, not its coordinates."
        )


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; damage found meanwhile becomes a `BagError`.

    Raises:
        BagError: The file is absent, truncated or damaged.
    """
    if not path.is_file():
        raise BagError(f"Expected a bag file, but there is none ({path}). Check the path.")
    advice = "It is probably truncated: extract the slide again."
    # Network disks of clusters often refuse HDF5's locks, which a reader does not need.
    with (
        damage_as(BagError, "a readable HDF5 file", path, advice),
        h5py.File(path, "r", locking=False) as file,
    ):
        yield file


def hdf5_format(path: Path) -> Literal["trident", "clam-h5", "stamp"] | None:
    """Return whose layout an HDF5 file has; None where it holds no features.

    Raises:
        BagError: The file is damaged.
    """
    with open_hdf5(path) as file:
        features, coords = (own_dataset(file, name, path) for name in ("features", "coords"))
        if features is not None:
            is_trident = "encoder" in features.attrs or (
                coords is not None and "patch_size_level0" in coords.attrs
            )
            return "trident" if is_trident else "clam-h5"
        stamp = (own_dataset(file, name, path) for name in STAMP.feature_names)
        return "stamp" if any(found is not None for found in stamp) else None


def _content(dataset: h5py.Dataset, path: Path) -> NDArray[Any]:
    refuse_missing_data(dataset, path)
    found: NDArray[Any] = dataset[()]
    return found


def _trident_attributes(found: Datasets) -> Attributes:
    encoder = text_attribute(found.features.attrs, "encoder")
    if found.coords is None:
        return Attributes(encoder=encoder)
    return Attributes(
        encoder=encoder,
        magnification=positive_attribute(found.coords.attrs, "target_magnification"),
        patch_size=_level0_patch_size(found.coords.attrs, found.path),
    )


def _level0_patch_size(attributes: h5py.AttributeManager, path: Path) -> int | None:
    stored = number_attribute(attributes, "patch_size_level0")
    if stored is not None:
        return whole_side(stored, path)
    patch_size = number_attribute(attributes, "patch_size")
    level0 = _scale(attributes, "level0_magnification", path)
    target = _scale(attributes, "target_magnification", path)
    if patch_size is None or level0 is None or target is None:
        return None
    return whole_side(patch_size * level0 / target, path)


def _clam_attributes(found: Datasets) -> Attributes:
    if found.coords is None:
        return Attributes()
    # Present where features were written into the file of coordinates.
    patch_size = number_attribute(found.coords.attrs, "patch_size")
    downsample = _scale(found.coords.attrs, "downsample", found.path) or 1.0
    return Attributes(
        patch_size=None if patch_size is None else whole_side(patch_size * downsample, found.path)
    )


def _scale(attributes: h5py.AttributeManager, name: str, path: Path) -> float | None:
    """Return a factor or a size of pixels; None where it is absent.

    Raises:
        BagError: It is a number, but none above 0, or infinite.
    """
    value = number_attribute(attributes, name)
    if value is not None and not 0 < value < math.inf:  # NaN is neither
        raise BagError(
            f"Expected '{name}' to be a finite number above 0, but got {value:g} ({path}). "
            "Correct it, or extract the slide again."
        )
    return value


def _stamp_attributes(found: Datasets) -> Attributes:
    attributes = found.file.attrs
    mpp = _scale(attributes, "mpp", found.path)
    scale = 1.0 / mpp if mpp and text_attribute(attributes, "unit") == "um" else 1.0
    tile_size = number_attribute(attributes, "tile_size_um")
    return Attributes(
        encoder=text_attribute(attributes, "extractor"),
        patch_size=None if tile_size is None else whole_side(tile_size * scale, found.path),
        coords_scale=scale,
    )


TRIDENT = Hdf5Reader(("features",), _trident_attributes)
"""TRIDENT's files: `features` and `coords`, with the geometry in the attributes of `coords`."""

CLAM = Hdf5Reader(("features",), _clam_attributes)
"""CLAM's `h5_files`: `features` and `coords`, without attributes."""

STAMP = Hdf5Reader(("feats", "patch_embeddings"), _stamp_attributes)
"""STAMP's files: `feats`, with coordinates in micrometres.

STAMP does not store the pixel size of the slide's level 0. Where a file has the attribute `mpp`,
coordinates become level-0 pixels. Otherwise coordinates and patch side stay in micrometres,
rounded, which is the geometry of a slide of 1 µm a pixel.
"""
