"""The slide files in a folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from sgpmil.bags.tables import listed
from sgpmil.errors import SlideError

__all__ = [
    "IMAGE_SUFFIXES",
    "SUFFIXES",
    "dicom_files",
    "find_slides",
    "is_slide_file",
    "unique_slides",
]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
"""Suffixes of images that are slides of one level."""

SUFFIXES = (
    *(".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".svslide", ".vms", ".vmu", ".dcm"),
    *(".tif", ".tiff", ".btf", ".tf2", ".tf8", ".qptiff"),
    *IMAGE_SUFFIXES,
)
"""Suffixes of slide files."""

_HAMAMATSU = (".vms", ".vmu")


def is_slide_file(path: str | os.PathLike[str]) -> bool:
    """Say whether a name is that of a slide file: by its suffix, and not hidden.

    Args:
        path: The file; it need not exist.

    Example:
        >>> is_slide_file("a.b.SVS"), is_slide_file("._a.svs"), is_slide_file("a.csv")
        (True, False, False)
    """
    file = Path(path)
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def find_slides(folder: str | os.PathLike[str], *, recursive: bool = False) -> list[Path]:
    """Find the slides in a folder, in the order of their paths.

    A subfolder of DICOM files is a slide. Hidden files, and the images that are part of a slide
    in Hamamatsu's VMS format, are left out.

    Args:
        folder: The folder.
        recursive: Whether to look into its subfolders too.

    Raises:
        SlideError: There is no such folder, or no slide in it, or two slides have one name.
    """
    place = Path(folder)
    if not place.is_dir():
        found = "a file" if place.exists() else "none"
        raise SlideError(
            f"Expected a folder of slides at '{place}', but there is {found}. Check the path."
        )
    try:
        slides = sorted(_slides(place, recursive))
    except OSError as error:
        raise SlideError(
            f"Expected a folder of slides at '{place}', but it cannot be read ({error}). Check "
            "its permissions."
        ) from error
    if not slides:
        deeper = "" if recursive else " (its subfolders were not searched)"
        raise SlideError(
            f"Expected slides in '{place}', but there are none{deeper}. Slides end in "
            f"{', '.join(SUFFIXES)}."
        )
    return unique_slides(slides)


def unique_slides(slides: list[Path]) -> list[Path]:
    """Refuse two slides of one name: one's embeddings would overwrite the other's.

    Args:
        slides: Slide files.

    Raises:
        SlideError: Two have one name.
    """
    seen: dict[str, Path] = {}
    for slide in slides:
        name = slide.name if slide.is_dir() else slide.stem
        if name in seen:
            raise SlideError(
                f"Expected slides of different names, but '{seen[name]}' and '{slide}' are both "
                f"'{name}'. Rename one, or take it out of the folder."
            )
        seen[name] = slide
    return slides


def dicom_files(folder: Path) -> list[Path]:
    """List the DICOM files in a folder, the largest first.

    Args:
        folder: The folder.
    """
    files = [
        file
        for file in folder.iterdir()
        if file.suffix.lower() == ".dcm" and not file.name.startswith(".") and file.is_file()
    ]
    return sorted(files, key=lambda file: (-file.stat().st_size, file.name))


def _slides(folder: Path, recursive: bool) -> Iterator[Path]:
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    dicom = [entry.name for entry in entries if entry.suffix.lower() == ".dcm"]
    if len(dicom) > 1:
        raise SlideError(
            f"Expected each DICOM slide in a folder of its own, but got {len(dicom)} files in "
            f"'{folder}' ({listed(dicom)}). Put the files of a slide into a subfolder."
        )
    has_vms = any(entry.suffix.lower() in _HAMAMATSU for entry in entries)
    for entry in entries:
        if entry.is_dir():
            if dicom_files(entry):
                yield entry
            elif recursive:
                yield from _slides(entry, recursive)
        elif is_slide_file(entry) and not (has_vms and entry.suffix.lower() in IMAGE_SUFFIXES):
            yield entry
