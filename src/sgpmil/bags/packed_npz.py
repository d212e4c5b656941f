"""Many bags in one `.npz` file, as the classic sets of multiple instance learning come."""

import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.readers.numpy_files import load_npz
from sgpmil.errors import BagError

__all__ = ["is_packed_npz", "read_packed_npz"]


def is_packed_npz(path: Path) -> bool:
    """Say whether a file is a `.npz` with several bags, from its table of contents alone."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "offsets.npy" in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def read_packed_npz(path: Path) -> BagDataset:
    """Read a file of packed bags into memory.

    Args:
        path: `.npz` with `features` (all instances), `offsets` (where each bag begins, and the
            end) and optionally `labels`, `instance_labels` and `slide_ids`.

    Raises:
        BagError: The file is damaged, or its arrays do not fit together.
    """
    arrays = load_npz(path)
    absent = sorted({"features", "offsets"} - arrays.keys())
    if absent:
        raise BagError(
            f"Expected arrays 'features' and 'offsets', but got {sorted(arrays)} ({path}). "
            f"Add {' and '.join(absent)}."
        )
    features, offsets = arrays["features"], arrays["offsets"]
    fits = (
        features.ndim == 2
        and offsets.ndim == 1
        and offsets.dtype.kind in "iu"
        and len(offsets) > 1
        and offsets[0] == 0
        and offsets[-1] == len(features)
        and bool((np.diff(offsets.astype(np.int64)) >= 0).all())
    )
    if not fits:
        raise BagError(
            f"Expected offsets that rise from 0 to the number of rows of 'features', but got "
            f"{offsets.shape} offsets for features of shape {features.shape} ({path}). "
            "Write offsets[b] as the first row of bag b."
        )
    count = len(offsets) - 1
    bounds = list(pairwise(offsets.tolist()))
    width = len(str(count - 1))
    names = [f"{path.stem}-{b:0{width}d}" for b in range(count)]
    instance_labels = arrays.get("instance_labels")
    try:
        return BagDataset.from_arrays(
            [features[start:end] for start, end in bounds],
            arrays.get("labels"),
            slide_ids=arrays["slide_ids"].astype(str).tolist() if "slide_ids" in arrays else names,
            instance_labels=None
            if instance_labels is None
            else [instance_labels[start:end] for start, end in bounds],
        )
    except BagError as error:
        raise type(error)(f"{path}: {error}") from None
