"""Readers of numpy files: `.npy` with the features, and `.npz` with named arrays."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgpmil.bags.files import regular_file
from sgpmil.bags.readers.own_data import refuse_inflated_zip
from sgpmil.bags.readers.raw import (
    BagHeader,
    RawBag,
    as_coords,
    as_features,
    as_instance_labels,
    bag_shape,
)
from sgpmil.bags.readers.stored_values import whole_side
from sgpmil.errors import BagError, damage_as

_ADVICE = "Write it again, without Python objects."


class Npy:
    """A matrix (instances, features).

    A file laid out as torchmil's sets are (`features/<name>/<slide>.npy`) takes its coordinates
    and instance labels from the neighbouring folders `coords` and `patch_labels`.
    """

    @staticmethod
    def read(path: Path) -> RawBag:
        """Read a matrix and what its neighbouring folders hold."""
        features = as_features(load_npy(path), path)
        coords, labels = _neighbour(path, "coords"), _neighbour(path, "patch_labels")
        num_instances = features.shape[0]
        return RawBag(
            features=features,
            coords=None if coords is None else as_coords(load_npy(coords), num_instances, coords),
            patch_size=_folder_patch_size(path),
            instance_labels=None
            if labels is None
            else as_instance_labels(load_npy(labels).reshape(-1), num_instances, labels),
        )

    @staticmethod
    def peek(path: Path) -> BagHeader:
        """Read the shape of a matrix."""
        array = load_npy(path, mapped=True)
        num_instances, feature_dim = bag_shape(array.shape, path)
        return BagHeader(
            num_instances,
            feature_dim,
            dtype=str(array.dtype),
            patch_size=_folder_patch_size(path),
            has_coords=_neighbour(path, "coords") is not None,
            has_instance_labels=_neighbour(path, "patch_labels") is not None,
        )


class Npz:
    """Named arrays: `features` and, where present, `coords`, `instance_labels`, `patch_size`."""

    @staticmethod
    def read(path: Path) -> RawBag:
        """Read the arrays."""
        arrays = load_npz(path)
        features = as_features(_npz_features(arrays, path), path)
        num_instances = features.shape[0]
        return RawBag(
            features=features,
            coords=as_coords(arrays["coords"], num_instances, path) if "coords" in arrays else None,
            patch_size=_patch_size(arrays, path),
            instance_labels=as_instance_labels(arrays["instance_labels"], num_instances, path)
            if "instance_labels" in arrays
            else None,
        )

    @staticmethod
    def peek(path: Path) -> BagHeader:
        """Read the shape of `features`, for which a compressed file is read whole."""
        arrays = load_npz(path)
        features = _npz_features(arrays, path)
        num_instances, feature_dim = bag_shape(features.shape, path)
        return BagHeader(
            num_instances,
            feature_dim,
            dtype=str(features.dtype),
            patch_size=_patch_size(arrays, path),
            has_coords="coords" in arrays,
            has_instance_labels="instance_labels" in arrays,
        )


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Load the arrays of a `.npz` file, never unpickling objects.

    Raises:
        BagError: The file is absent or damaged, or holds Python objects.
    """
    with damage_as(BagError, "a readable numpy file of numbers", path, _ADVICE):
        refuse_inflated_zip(regular_file(path))
        # Opened here, because numpy leaves a damaged archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: _member(archive, name) for name in archive.files}


def load_npy(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """Load the array of a `.npy` file, never unpickling objects.

    Raises:
        BagError: The file is absent or damaged, or holds Python objects.
    """
    with damage_as(BagError, "a readable numpy file of numbers", path, _ADVICE):
        array = np.load(regular_file(path), mmap_mode="r" if mapped else None, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise BagError(f"Expected one array, but got several ({path}). Name it .npz.")
    return array


def _npz_features(arrays: dict[str, NDArray[Any]], path: Path) -> NDArray[Any]:
    if "offsets" in arrays:
        raise BagError(
            f"Expected one bag, but got {max(len(arrays['offsets']) - 1, 0)} packed bags ({path}). "
            "Give this file itself in place of a folder."
        )
    if "features" not in arrays:
        raise BagError(
            f"Expected an array 'features', but got {sorted(arrays)} ({path}). "
            "Save it with numpy.savez(path, features=...)."
        )
    return arrays["features"]


def _patch_size(arrays: dict[str, NDArray[Any]], path: Path) -> int | None:
    if "patch_size" not in arrays:
        return None
    value = arrays["patch_size"]
    if value.size != 1 or value.dtype.kind not in "fiu" or not np.isfinite(value).all():
        raise BagError(
            f"Expected one number as 'patch_size', but got shape {value.shape} of {value.dtype} "
            f"({path}). Store the side of an instance in level-0 pixels."
        )
    return whole_side(float(value.flat[0]), path)


def _folder_patch_size(path: Path) -> int | None:
    """Return the side of a patch that torchmil's folder `patches_512` names."""
    found = re.fullmatch(r"patches_(\d+)", path.parents[2].name) if len(path.parents) > 2 else None
    if found is None or path.parent.parent.name != "features":
        return None
    return int(found[1]) or None


def _neighbour(path: Path, folder: str) -> Path | None:
    if path.parent.parent.name != "features":
        return None
    found = path.parents[2] / folder / path.name
    return found if found.is_file() else None


def _member(archive: Any, name: str) -> NDArray[Any]:
    found = archive[name]
    if not isinstance(found, np.ndarray):  # numpy gives the bytes of what is no array
        raise ValueError(f"{name}, which is no array")
    return found
