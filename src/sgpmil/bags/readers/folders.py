"""Finding the bag files of a folder, as the tools that extract features lay them out."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.readers.detection import BAG_SUFFIXES, BagFormat, detect_format, slide_name
from sgpmil.errors import BagError

__all__ = ["BagFile", "find_bag_files"]

# Folders that may hold folders of bags: TRIDENT's settings, torchmil's patches, features.
_INNER = re.compile(r"features|features_.+|patches_\d+|.+x_\d+px_\d+px_overlap")
_NOT_BAGS = (".index.npz", "_patches.h5", ".tmp.h5", ".tmp.pt", ".tmp.npy", ".tmp.npz")


@dataclass(frozen=True, slots=True)
class BagFile:
    """A file that holds one bag.

    Args:
        slide_id: Name of the slide.
        path: Where the file is.
        format: Its format; None where it is damaged or of no known format.
    """

    slide_id: str
    path: Path
    format: BagFormat | None


def find_bag_files(folder: Path) -> list[BagFile]:
    """Find the bag files of a folder, sorted by slide.

    Accepted are a TRIDENT job folder, one of its settings (`20x_256px_0px_overlap`) or feature
    folders, a CLAM root with `h5_files` (preferred, as it has coordinates) or `pt_files`, a
    torchmil set, a flat folder of bag files, and one bag file.

    Args:
        folder: Where to look.

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
    slides = {slide_name(path) for path in with_coords}
    tensors = [path for path in _bag_paths(folder / "pt_files") if slide_name(path) not in slides]
    return _by_slide([*with_coords, *tensors])


def _bag_paths(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return _by_slide(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in BAG_SUFFIXES
        and not path.name.startswith(".")
        and not path.name.endswith(_NOT_BAGS)
        and path.is_file()
    )


def _by_slide(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (slide_name(path), path.name))


def _bag_file(path: Path) -> BagFile:
    bag_format: BagFormat | None
    try:
        bag_format = detect_format(path)
    except BagError:
        # One damaged file must not hide the others; reading it tells what is wrong.
        bag_format = None
    return BagFile(slide_name(path), path, bag_format)


def _content(folder: Path) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    if not names:
        return "an empty folder"
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
