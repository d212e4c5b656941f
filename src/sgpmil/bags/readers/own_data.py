"""Data that lie in the file itself, whole, and are no larger than the file can hold.

An HDF5 file can name other files as its content, and gives zeros for what was never written. A
small archive can unfold to fill the memory. This module imports HDF5 when it is first used.
"""

import math
import posixpath
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from sgpmil.errors import BagError, SgpmilError

if TYPE_CHECKING:  # the processes that read slides do without it
    import h5py

_MOST_LINKS = 8
_FREE_BYTES = 2**28
"""Bytes that any file may unfold to: 256 MiB."""
_MOST_TIMES = 100
"""Times that embeddings may be larger than their file, beyond that."""


def own_dataset(file: "h5py.File", name: str, path: Path) -> "h5py.Dataset | None":
    """Return a dataset of an HDF5 file whose data lie in that file; None where there is none.

    Raises:
        BagError: The dataset is a link to another file, or takes its data from other files.
    """
    import h5py

    found = _followed(file, name, path, _MOST_LINKS)
    if not isinstance(found, h5py.Dataset):
        return None
    if found.external is not None or found.is_virtual:
        raise _elsewhere(name, path)
    return found


def refuse_missing_data(dataset: "h5py.Dataset", path: Path) -> None:
    """Refuse a dataset part of which was never written, which HDF5 reads as zeros.

    Raises:
        BagError: Part of it is missing, or it claims far more than the file holds.
    """
    num_bytes, stored = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if dataset.chunks is None:
        is_whole = stored >= num_bytes
    else:
        sides = zip(dataset.shape, dataset.chunks, strict=True)
        num_chunks = math.prod(-(-length // chunk) for length, chunk in sides)
        is_whole = dataset.id.get_num_chunks() >= num_chunks
    if not is_whole:
        raise BagError(
            f"Expected {dataset.shape} numbers in '{dataset.name}', as the file says, but part of "
            f"them was never written ({path}). The extraction was interrupted: extract the slide "
            "again."
        )
    refuse_inflated(num_bytes, stored, path)


def refuse_inflated(
    num_bytes: int, stored: int, path: Path, kind: type[SgpmilError] = BagError
) -> None:
    """Refuse content that is far larger than its file.

    Args:
        num_bytes: Bytes of the content.
        stored: Bytes that it takes in the file.
        path: The file.
        kind: Error to raise.

    Raises:
        SgpmilError: It unfolds to more than 256 MiB and more than a hundred times its size.
    """
    if num_bytes > max(_FREE_BYTES, _MOST_TIMES * stored):
        raise kind(
            f"Expected content of at most {_MOST_TIMES} times its size on disk, but "
            f"{stored / 2**20:.1f} MiB claim to be {num_bytes / 2**30:.1f} GiB ({path}). It is "
            "damaged or made to fill the memory: write it again."
        )


def refuse_inflated_zip(path: Path, kind: type[SgpmilError] = BagError) -> None:
    """Refuse an archive whose members are far larger than the archive; others pass.

    Raises:
        SgpmilError: They are; of the type `kind`.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            num_bytes = sum(member.file_size for member in archive.infolist())
        refuse_inflated(num_bytes, path.stat().st_size, path, kind)


def _followed(
    file: "h5py.File", name: str, path: Path, links_left: int
) -> "h5py.Group | h5py.Dataset | None":
    """Go to an object step by step; h5py would open other files on the way."""
    import h5py

    place: h5py.Group | h5py.Dataset | None = file
    for part in filter(None, name.split("/")):
        if not isinstance(place, h5py.Group):
            return None
        link = place.get(part, getlink=True)
        if isinstance(link, h5py.ExternalLink) or links_left == 0:
            raise _elsewhere(name, path)
        if isinstance(link, h5py.SoftLink):
            target = posixpath.normpath(posixpath.join(place.name, link.path))
            place = _followed(file, target, path, links_left - 1)
        else:
            place = None if link is None else place[part]
    return place


def _elsewhere(name: str, path: Path) -> BagError:
    return BagError(
        f"Expected '{name}' to lie in the file itself, but it is taken from other files or places "
        f"({path}). Copy the data into one file, for example with h5repack."
    )
