"""Slide files of a folder or of a table."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.tables import TextTable, listed, read_table
from sgpmil.errors import SlideError

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
    """Return whether a file has the suffix of a slide and is not hidden.

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
    """List the DICOM files in a folder, the largest first."""
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


_SLIDE = ("wsi", "slide", "filename")
_MPP = ("mpp",)
_MAGNIFICATION = ("mag", "magnification")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ListedSlide:
    """A slide of a list.

    Args:
        path: The file.
        mpp: Microns a level-0 pixel; None where the list does not say.
        magnification: Magnification of level 0; None where the list does not say.
    """

    path: Path
    mpp: float | None = None
    magnification: float | None = None


def read_slide_list(
    path: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
) -> tuple[ListedSlide, ...]:
    """Read a table of slides: a column `wsi`, and perhaps `mpp` and `mag`.

    The column may also be called `slide` or `filename`, and `magnification` be written out;
    other columns are left alone.

    Args:
        path: The table (CSV, TSV or XLSX).
        folder: Folder that the names are relative to; by default the table's own.

    Raises:
        SlideError: The table cannot be read, a slide is missing or named twice, or a number is
            none.
    """
    file = Path(path)
    place = file.parent if folder is None else Path(folder)
    table = read_table(file, SlideError)
    column = _column(table, _SLIDE)
    if column is None:
        raise SlideError(
            f"Expected a column 'wsi' with the names of the slides in '{file}', but got the "
            f"columns {listed(table.columns, _SHOWN)}. Name it 'wsi'."
        )
    names = [row[column] for row in table.rows]
    if not names:
        raise SlideError(f"Expected slides in '{file}', but it lists none. Fill it.")
    _check_names(names, place, file)
    mpp, magnification = (_numbers(table, choice) for choice in (_MPP, _MAGNIFICATION))
    slides = tuple(
        ListedSlide(place / name, a, b)
        for name, a, b in zip(names, mpp, magnification, strict=True)
    )
    unique_slides([slide.path for slide in slides])
    return slides


def _column(table: TextTable, names: tuple[str, ...]) -> int | None:
    columns = [column.lower() for column in table.columns]
    return next((columns.index(name) for name in names if name in columns), None)


def _check_names(names: list[str], place: Path, file: Path) -> None:
    if "" in names:
        raise SlideError(
            f"Expected the name of a slide in each row of '{file}', but row "
            f"{names.index('') + 1} has none. Fill it, or take the row out."
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SlideError(
            f"Expected each slide once in '{file}', but got several rows of "
            f"{listed(repeated, _SHOWN)}. Keep one row a slide."
        )
    missing = [name for name in names if not (place / name).exists()]
    if missing:
        raise SlideError(
            f"Expected the slides of '{file}' in '{place}', but {len(missing)} of {len(names)} "
            f"are not there: {listed(missing, _SHOWN)}. Names need their suffix, and are "
            "relative to the folder."
        )
    foreign = [n for n in names if not ((place / n).is_dir() or is_slide_file(place / n))]
    if foreign:
        raise SlideError(
            f"Expected slide files in '{file}', but got {listed(foreign, _SHOWN)}. Name slides "
            "only."
        )


def _numbers(table: TextTable, names: tuple[str, ...]) -> list[float | None]:
    column = _column(table, names)
    if column is None:
        return [None] * len(table.rows)
    return [_number(row[column], n, names[0], table.path) for n, row in enumerate(table.rows, 1)]


def _number(text: str, row: int, name: str, file: Path) -> float | None:
    if text.lower() in ("", "nan", "na", "none"):  # how tables write that a cell is empty
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise SlideError(
            f"Expected a positive number or nothing as {name} in '{file}', but got '{text}' in row "
            f"{row}. Correct it."
        )
    return value
