"""Readers of HDF5 files: TRIDENT, CLAM and STAMP.

They differ in the name of the features and in the attributes that describe the instances.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py

from sgpmil.bags.readers.raw import (
    BagHeader,
    RawBag,
    as_coords,
    as_features,
    as_instance_labels,
    bag_shape,
)
from sgpmil.bags.readers.stored_values import number_attribute, text_attribute
from sgpmil.errors import BagError


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
class Hdf5Reader:
    """A reader of one HDF5 format.

    Args:
        feature_names: Names the features may have, the preferred one first.
        attributes: Reads the attributes of an open file.
    """

    feature_names: tuple[str, ...]
    attributes: Callable[[h5py.File], Attributes]

    def read(self, path: Path) -> RawBag:
        """Read the arrays of a bag.

        Raises:
            BagError: The file is damaged or does not hold a bag.
        """
        with open_hdf5(path) as file:
            attributes = self.attributes(file)
            features = as_features(self._features(file, path)[()], path)
            coords = _dataset(file, "coords")
            instance_labels = _dataset(file, "instance_labels")
            num_instances = features.shape[0]
            return RawBag(
                features=features,
                coords=None
                if coords is None
                else as_coords(coords[()], num_instances, path, attributes.coords_scale),
                patch_size=attributes.patch_size,
                instance_labels=None
                if instance_labels is None
                else as_instance_labels(instance_labels[()], num_instances, path),
            )

    def peek(self, path: Path) -> BagHeader:
        """Read a bag's shape and attributes, not its features.

        Raises:
            BagError: The file is damaged or does not hold a bag.
        """
        with open_hdf5(path) as file:
            attributes = self.attributes(file)
            features = self._features(file, path)
            num_instances, feature_dim = bag_shape(features.shape, path)
            return BagHeader(
                num_instances=num_instances,
                feature_dim=feature_dim,
                dtype=str(features.dtype),
                encoder=attributes.encoder,
                magnification=attributes.magnification,
                patch_size=attributes.patch_size,
                has_coords=_dataset(file, "coords") is not None,
                has_instance_labels=_dataset(file, "instance_labels") is not None,
            )

    def _features(self, file: h5py.File, path: Path) -> h5py.Dataset:
        for name in self.feature_names:
            dataset = _dataset(file, name)
            if dataset is not None:
                return dataset
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
    try:
        # Network disks of clusters often refuse HDF5's locks, which a reader does not need.
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise BagError(
            f"Expected a readable HDF5 file, but got '{reason}' ({path}). "
            "It is probably truncated: extract the slide again."
        ) from error


def is_trident(file: h5py.File) -> bool:
    """Return whether a file with `features` carries TRIDENT's attributes."""
    features, coords = file.get("features"), file.get("coords")
    return (features is not None and "encoder" in features.attrs) or (
        coords is not None and "patch_size_level0" in coords.attrs
    )


def _trident_attributes(file: h5py.File) -> Attributes:
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


def _clam_attributes(file: h5py.File) -> Attributes:
    coords = file.get("coords")
    if coords is None:
        return Attributes()
    # Present where features were written into the file of coordinates.
    patch_size = number_attribute(coords.attrs, "patch_size")
    downsample = number_attribute(coords.attrs, "downsample") or 1.0
    return Attributes(patch_size=None if patch_size is None else round(patch_size * downsample))


def _stamp_attributes(file: h5py.File) -> Attributes:
    mpp = number_attribute(file.attrs, "mpp")
    scale = 1.0 / mpp if mpp and text_attribute(file.attrs, "unit") == "um" else 1.0
    tile_size = number_attribute(file.attrs, "tile_size_um")
    return Attributes(
        encoder=text_attribute(file.attrs, "extractor"),
        patch_size=None if tile_size is None else round(tile_size * scale),
        coords_scale=scale,
    )


def _dataset(file: h5py.File, name: str) -> h5py.Dataset | None:
    found = file.get(name)
    return found if isinstance(found, h5py.Dataset) else None


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
