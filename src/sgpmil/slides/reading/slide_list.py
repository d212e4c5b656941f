"""A table of the slides to work on, with what their files do not say."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.tables import TextTable, listed, read_table
from sgpmil.errors import SlideError
from sgpmil.slides.reading.finding import is_slide_file, unique_slides

__all__ = ["ListedSlide", "read_slide_list"]

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
