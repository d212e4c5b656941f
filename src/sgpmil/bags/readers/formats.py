"""Formats of bag files: their detection, the reader of each, and folders of bag files.

A reader is imported with the first file of its format, so that importing the package does not
load HDF5.
"""

import re
import zipfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from sgpmil.bags.files import name_fault, printable_name
from sgpmil.bags.readers.raw import BagHeader, RawBag, Reader
from sgpmil.errors import BagError, damage_as

BagFormat = Literal["trident", "clam-h5", "clam-pt", "stamp", "slideflow", "npy", "npz"]
"""A format of bag files: whose layout it is, and the kind of file where there are two."""

_READERS: dict[BagFormat, tuple[str, str]] = {
    "trident": ("hdf5", "TRIDENT"),
    "clam-h5": ("hdf5", "CLAM"),
    "clam-pt": ("torch_files", "ClamTensors"),
    "stamp": ("hdf5", "STAMP"),
    "slideflow": ("torch_files", "Slideflow"),
    "npy": ("numpy_files", "Npy"),
    "npz": ("numpy_files", "Npz"),
}

_HDF5, _NUMPY, _ZIP = b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"PK\x03\x04"

_SUFFIXES = frozenset({".h5", ".hdf5", ".pt", ".pth", ".npy", ".npz"})
_NOT_BAGS = (".index.npz", "_patches.h5", ".tmp.h5", ".tmp.pt", ".tmp.npy", ".tmp.npz")
# Folders that may hold folders of bags: TRIDENT's settings, torchmil's patches, features.
_INNER = re.compile(r"features|features_.+|patches_\d+|.+x_\d+px_\d+px_overlap")


def read_raw(path: Path, bag_format: BagFormat | None = None) -> RawBag:
    """Read the arrays of one file, which may be empty or not finite.

    Raises:
        BagError: The file is damaged or of an unknown format.
    """
    with _damage(path):
        return _reader(path, bag_format).read(path)


def peek_bag(path: Path, bag_format: BagFormat | None = None) -> BagHeader:
    """Read the size and description of a bag, without its features where possible.

    Raises:
        BagError: The file is damaged or of an unknown format.
    """
    with _damage(path):
        return _reader(path, bag_format).peek(path)


def _damage(path: Path) -> AbstractContextManager[None]:
    """Turn whatever a reader or its library raises into a `BagError` of this file."""
    advice = "It is probably damaged: extract the slide again."
    return damage_as(BagError, "a readable bag file", path, advice)


def _reader(path: Path, bag_format: BagFormat | None) -> Reader:
    module, name = _READERS[bag_format or detect_format(path)]
    reader: Reader = getattr(import_module(f"sgpmil.bags.readers.{module}"), name)
    return reader


@dataclass(frozen=True, slots=True)
class BagFile:
    """A file that holds one bag.

    Args:
        slide_id: Name of the slide.
        path: The file.
        format: Its format; None where it is damaged or of no known format.
    """

    slide_id: str
    path: Path
    format: BagFormat | None

    def read(self) -> RawBag:
        """Read its arrays, which may be empty or not finite.

        Raises:
            BagError: The file is damaged, or its name cannot be a slide's.
        """
        self._check_name()
        return read_raw(self.path, self.format)

    def peek(self) -> BagHeader:
        """Read the size and description of its bag, without the features where possible.

        Raises:
            BagError: The file is damaged, or its name cannot be a slide's.
        """
        self._check_name()
        return peek_bag(self.path, self.format)

    def _check_name(self) -> None:
        fault = name_fault(self.slide_id)
        if fault:
            raise BagError(
                f"Expected the name of a slide, but got {self.slide_id!r}, which {fault} "
                f"({self.path.parent}). Rename the file."
            )


def find_bag_files(folder: Path) -> list[BagFile]:
    """Find the bag files of a folder, sorted by slide.

    Accepted are a TRIDENT job folder, one of its settings (`20x_256px_0px_overlap`) or feature
    folders, a CLAM root with `h5_files` (preferred, as it has coordinates) or `pt_files`, a
    torchmil set, a flat folder of bag files, and one bag file.

    Raises:
        BagError: There is no bag file, or there are several folders of them to choose from.
    """
    if folder.is_file():
        return [_bag_file(folder)]
    if not folder.is_dir():
        raise BagError(
            f"Expected a folder of bag files, but there is none ({folder}). Check the path."
        )
    try:
        leaves = _leaves(folder)
    except OSError as error:
        raise BagError(
            f"Expected a readable folder, but got '{error.strerror}' ({folder}). "
            "Check its permissions."
        ) from error
    if not leaves:
        raise BagError(
            f"Expected bag files (.h5, .pt, .npy or .npz), but found {_content(folder)} "
            f"({folder}). Give the folder that holds the embeddings."
        )
    if len(leaves) > 1:
        names = ", ".join(str(leaf[0].parent.relative_to(folder)) for leaf in leaves)
        raise BagError(
            f"Expected one folder of bag files, but found {len(leaves)}: {names} ({folder}). "
            "Give one of them."
        )
    return [_bag_file(path) for path in leaves[0]]


def detect_format(path: Path) -> BagFormat:
    """Detect the format of a bag file, by its content first and then by its name.

    Raises:
        BagError: The file is absent, or its content is of no known format.
    """
    with _damage(path):
        return _detected(path)


def _detected(path: Path) -> BagFormat:
    start = _first_bytes(path)
    suffix = path.suffix.lower()
    if start.startswith(_HDF5) or (suffix in (".h5", ".hdf5") and start):
        return _hdf5_format(path)
    if start.startswith(_NUMPY):
        return "npy"
    if start.startswith(_ZIP) and not _is_torch_archive(path):
        return "npz"
    if start.startswith(_ZIP) or (suffix in (".pt", ".pth") and start):
        return "slideflow" if path.with_name(f"{path.stem}.index.npz").is_file() else "clam-pt"
    what = "an empty file" if not start else "other content"
    raise BagError(
        f"Expected HDF5, a torch file or a numpy file, but got {what} ({path}). "
        "Extract the slide again, or take the file out of the folder."
    )


def _leaves(folder: Path) -> list[list[Path]]:
    """List the bag files of each place below the folder that has any."""
    clam = _clam_files(folder)
    if clam:
        return [clam]
    flat = _bag_paths(folder)
    if flat:
        return [flat]
    inner = sorted(
        entry for entry in folder.iterdir() if entry.is_dir() and _INNER.fullmatch(entry.name)
    )
    return [leaf for entry in inner for leaf in _leaves(entry)]


def _clam_files(folder: Path) -> list[Path]:
    with_coords = _bag_paths(folder / "h5_files")
    slides = {path.stem for path in with_coords}
    tensors = [path for path in _bag_paths(folder / "pt_files") if path.stem not in slides]
    return _by_slide([*with_coords, *tensors])


def _bag_paths(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return _by_slide(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in _SUFFIXES
        and not path.name.startswith(".")
        and not path.name.endswith(_NOT_BAGS)
        and path.is_file()
    )


def _by_slide(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (path.stem, path.name))


def _bag_file(path: Path) -> BagFile:
    bag_format: BagFormat | None
    try:
        bag_format = detect_format(path)
    except BagError:
        # One damaged file must not hide the others; the error comes when it is read.
        bag_format = None
    return BagFile(printable_name(path.stem), path, bag_format)


def _content(folder: Path) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    if not names:
        return "an empty folder"
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


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
    from sgpmil.bags.readers.hdf5 import hdf5_format, open_hdf5

    found = hdf5_format(path)
    if found is not None:
        return found
    with open_hdf5(path) as file:
        names = sorted(file)
    raise BagError(
        f"Expected a dataset 'features' or 'feats', but got {names} ({path}). "
        "Give the embeddings of the slide, not its coordinates."
    )


def _is_torch_archive(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except Exception:  # noqa: BLE001 (whatever an archive is damaged by)
        # A truncated archive has lost its directory; only its name is left to go by.
        return path.suffix.lower() in (".pt", ".pth")
