"""Telling the format of a bag file from its content, and from its name where content does not.

The readers are imported when a file of their format is met, so that importing the package does
not load HDF5.
"""

import zipfile
from pathlib import Path
from typing import Literal

from sgpmil.bags.bag import Bag
from sgpmil.bags.readers.raw import BagHeader, RawBag
from sgpmil.errors import BagError

__all__ = [
    "BAG_SUFFIXES",
    "BagFormat",
    "detect_format",
    "peek_bag",
    "read_bag",
    "read_raw",
    "slide_name",
]

BagFormat = Literal["trident", "clam-h5", "clam-pt", "stamp", "slideflow", "npy", "npz"]
"""A format of bag files: whose layout it is, and the kind of file where there are two."""

BAG_SUFFIXES = frozenset({".h5", ".hdf5", ".pt", ".pth", ".npy", ".npz"})
"""What the name of a bag file may end with."""

_HDF5, _NUMPY, _ZIP = b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"PK\x03\x04"


def read_bag(path: Path) -> Bag:
    """Read the bag of one file, whatever its format.

    Args:
        path: A bag file; the slide is named as the file without its last suffix.

    Raises:
        EmptyBagError: There are no instances.
        BagError: The file is damaged, of an unknown format, or holds NaN or infinity.
    """
    return read_raw(path).to_bag(slide_name(path), path)


def read_raw(path: Path, bag_format: BagFormat | None = None) -> RawBag:
    """Read the arrays of one file, which may be empty or not finite.

    Raises:
        BagError: The file is damaged or of an unknown format.
    """
    from sgpmil.bags.readers import clam, numpy_files, slideflow, stamp, trident

    match bag_format or detect_format(path):
        case "trident":
            return trident.read(path)
        case "clam-h5":
            return clam.read_h5(path)
        case "clam-pt":
            return clam.read_pt(path)
        case "stamp":
            return stamp.read(path)
        case "slideflow":
            return slideflow.read(path)
        case "npy":
            return numpy_files.read_npy(path)
        case "npz":
            return numpy_files.read_npz(path)


def peek_bag(path: Path, bag_format: BagFormat | None = None) -> BagHeader:
    """Read what a file says of its bag, without reading the features where possible.

    Raises:
        BagError: The file is damaged or of an unknown format.
    """
    from sgpmil.bags.readers import clam, numpy_files, slideflow, stamp, trident

    match bag_format or detect_format(path):
        case "trident":
            return trident.peek(path)
        case "clam-h5":
            return clam.peek_h5(path)
        case "clam-pt":
            return clam.peek_pt(path)
        case "stamp":
            return stamp.peek(path)
        case "slideflow":
            return slideflow.peek(path)
        case "npy":
            return numpy_files.peek_npy(path)
        case "npz":
            return numpy_files.peek_npz(path)


def detect_format(path: Path) -> BagFormat:
    """Tell the format of a bag file.

    Raises:
        BagError: The file is absent, or its content is of no known format.
    """
    start = _first_bytes(path)
    suffix = path.suffix.lower()
    if start.startswith(_HDF5) or (suffix in (".h5", ".hdf5") and start):
        return _hdf5_format(path)
    if start.startswith(_NUMPY):
        return "npy"
    if start.startswith(_ZIP) and not _is_torch_archive(path):
        return "npz"
    if start.startswith(_ZIP) or (suffix in (".pt", ".pth") and start):
        return "slideflow" if _has_index(path) else "clam-pt"
    what = "an empty file" if not start else "other content"
    raise BagError(
        f"Expected HDF5, a torch file or a numpy file, but got {what} ({path}). "
        "Extract the slide again, or take the file out of the folder."
    )


def slide_name(path: Path) -> str:
    """Return the slide a file belongs to: its name without the last suffix only.

    Example:
        >>> slide_name(Path("TCGA-22-1017-01Z-00-DX1.9562FE79.h5"))
        'TCGA-22-1017-01Z-00-DX1.9562FE79'
    """
    return path.stem


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(8)
    except OSError as error:
        raise BagError(
            f"Expected a readable bag file, but got '{error.strerror}' ({path}). "
            "Check the path and its permissions."
        ) from error


def _hdf5_format(path: Path) -> BagFormat:
    from sgpmil.bags.readers.hdf5 import open_hdf5
    from sgpmil.bags.readers.trident import is_trident

    with open_hdf5(path) as file:
        if "features" in file:
            return "trident" if is_trident(file) else "clam-h5"
        if "feats" in file or "patch_embeddings" in file:
            return "stamp"
        found = sorted(file)
    raise BagError(
        f"Expected a dataset 'features' or 'feats', but got {found} ({path}). "
        "Give the embeddings of the slide, not its coordinates."
    )


def _is_torch_archive(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        # A truncated archive has lost its directory: its name is what is left.
        return path.suffix.lower() in (".pt", ".pth")


def _has_index(path: Path) -> bool:
    return path.with_name(f"{path.stem}.index.npz").is_file()
