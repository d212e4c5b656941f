"""Coordinates of patches as TRIDENT stores them; those of CLAM are read too."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sgpmil.bags.readers.coordinates import whole_coordinates
from sgpmil.bags.readers.hdf5_attributes import number_attribute, text_attribute
from sgpmil.errors import BagError, ExtractionError
from sgpmil.slides.patches.grid import Patches
from sgpmil.slides.patches.hdf5_file import NewHdf5File, set_attributes

__all__ = ["add_coords", "read_coords", "write_coords"]

_ROWS = 4096
"""Rows of a chunk: 64 KiB."""


def write_coords(
    path: str | os.PathLike[str], patches: Patches, *, attributes: Mapping[str, Any] | None = None
) -> None:
    """Write where a slide's patches are, as TRIDENT does.

    The dataset `coords` (int64, a row (x, y) for each patch) has the geometry in its attributes.
    The same patches give the same bytes.

    Args:
        path: File to write, whole or not at all.
        patches: The patches.
        attributes: What else to remember, by name.

    Raises:
        OSError: The file cannot be written.
    """
    with NewHdf5File(path) as new:
        add_coords(new, patches, attributes)


def add_coords(
    new: NewHdf5File, patches: Patches, attributes: Mapping[str, Any] | None = None
) -> None:
    """Write the dataset `coords` into a new file.

    Args:
        new: The file.
        patches: The patches.
        attributes: What else to remember, by name.
    """
    width, height = (None, None) if patches.slide_size is None else patches.slide_size
    dataset = new.file.create_dataset(
        "coords",
        data=patches.coords.astype(np.int64, copy=False),
        maxshape=(None, 2),
        chunks=(max(1, min(_ROWS, len(patches.coords))), 2),
    )
    set_attributes(
        dataset,
        {
            **(attributes or {}),
            "patch_size": patches.size,
            "patch_size_level0": patches.side,
            "level0_magnification": _whole(patches.level0_magnification),
            "target_magnification": _whole(patches.target_magnification),
            "overlap": patches.overlap,
            "name": patches.slide_id,
            # Not the whole path: equal files, whatever the folder, and no names of users in them.
            "savetodir": new.path.parent.name,
            "level0_width": width,
            "level0_height": height,
        },
    )


def read_coords(path: str | os.PathLike[str]) -> Patches:
    """Read where a slide's patches are, from a file of this package, of TRIDENT or of CLAM.

    CLAM stores the side in pixels of a level, and the level's downsample. (`custom_downsample`,
    of old files, makes the encoded picture smaller, not the patch.)

    Args:
        path: File to read.

    Raises:
        ExtractionError: The file is missing or damaged, or does not say how large its patches are.
    """
    file = Path(path)
    try:
        with h5py.File(file, "r", locking=False) as content:
            dataset = content["coords"]
            if not isinstance(dataset, h5py.Dataset):
                raise KeyError("'coords' is no dataset")
            stored, attributes = np.asarray(dataset[()]), dataset.attrs
            count = 0 if stored.size == 0 else stored.shape[-2] if stored.ndim > 1 else 1
            coords = whole_coordinates(stored, count, file)
            return _patches(coords, attributes, file)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, BagError) as error:
        if isinstance(error, FileNotFoundError):
            reason = "there is none"
        else:
            reason = f"it cannot be read ({' '.join(str(error).split())})"
        raise ExtractionError(
            f"Expected coordinates of patches at '{file}', but {reason}. Remove it and place the "
            "patches again."
        ) from error


def _patches(coords: np.ndarray, attributes: h5py.AttributeManager, file: Path) -> Patches:
    size = number_attribute(attributes, "patch_size")
    level0 = number_attribute(attributes, "level0_magnification")
    target = number_attribute(attributes, "target_magnification")
    side = number_attribute(attributes, "patch_size_level0")
    downsample = number_attribute(attributes, "downsample")
    if side is None and size is not None:
        if level0 and target:
            side = size * level0 // target
        elif downsample:
            side = round(size * downsample)
            size /= number_attribute(attributes, "custom_downsample") or 1
    if size is None or side is None or size < 1 or side < 1:
        raise ExtractionError(
            "Expected the attributes 'patch_size' and 'patch_size_level0' (or CLAM's 'downsample') "
            f"on 'coords' in '{file}', but got {sorted(attributes)}. Place the patches again."
        )
    overlap = number_attribute(attributes, "overlap")
    return Patches(
        coords=coords,
        size=round(size),
        side=round(side),
        overlap=None if overlap is None else round(overlap),
        level0_magnification=level0,
        target_magnification=target,
        slide_size=_slide_size(attributes),
        slide_id=text_attribute(attributes, "name") or file.stem.removesuffix("_patches"),
    )


def _slide_size(attributes: h5py.AttributeManager) -> tuple[int, int] | None:
    width = number_attribute(attributes, "level0_width")
    height = number_attribute(attributes, "level0_height")
    if width is not None and height is not None:
        return round(width), round(height)
    # CLAM: the size of the level that patches are read from. Only level 0 is known exactly.
    level_size = np.asarray(attributes.get("level_dim", ()))
    if number_attribute(attributes, "patch_level") == 0 and level_size.shape == (2,):
        return int(level_size[0]), int(level_size[1])
    return None


def _whole(number: float | None) -> int | float | None:
    return int(number) if number is not None and float(number).is_integer() else number
