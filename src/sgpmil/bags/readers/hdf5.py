"""Reading a bag from HDF5: what the TRIDENT, CLAM and STAMP readers share."""

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
from sgpmil.errors import BagError

__all__ = [
    "Attributes",
    "Hdf5Layout",
    "open_hdf5",
    "peek_hdf5",
    "read_hdf5",
]


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a file's attributes say about its instances.

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
class Hdf5Layout:
    """Where a format keeps what: the differences between the HDF5 formats.

    Args:
        feature_names: Names the features may have, the preferred one first.
        attributes: Reads the attributes of an open file.
    """

    feature_names: tuple[str, ...]
    attributes: Callable[[h5py.File], Attributes]


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


def read_hdf5(path: Path, layout: Hdf5Layout) -> RawBag:
    """Read the arrays of a bag.

    Raises:
        BagError: The file is damaged or does not hold a bag.
    """
    with open_hdf5(path) as file:
        attributes = layout.attributes(file)
        features = as_features(_features(file, layout, path)[()], path)
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


def peek_hdf5(path: Path, layout: Hdf5Layout) -> BagHeader:
    """Read a bag's shape and attributes, not its features.

    Raises:
        BagError: The file is damaged or does not hold a bag.
    """
    with open_hdf5(path) as file:
        attributes = layout.attributes(file)
        features = _features(file, layout, path)
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


def _features(file: h5py.File, layout: Hdf5Layout, path: Path) -> h5py.Dataset:
    for name in layout.feature_names:
        dataset = _dataset(file, name)
        if dataset is not None:
            return dataset
    raise BagError(
        f"Expected a dataset '{layout.feature_names[0]}', but got {sorted(file)} ({path}). "
        "Give the embeddings of the slide, not its coordinates."
    )


def _dataset(file: h5py.File, name: str) -> h5py.Dataset | None:
    found = file.get(name)
    return found if isinstance(found, h5py.Dataset) else None
