"""Tables of text: CSV, TSV and XLSX, every cell kept as it is written.

Identifiers must not become numbers (leading zeros), and rows may be ragged or span lines. So each
cell is read as text.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sgpmil.bags.readers.own_data import refuse_inflated_zip
from sgpmil.errors import LabelError, SgpmilError, damage_as

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_LONGEST_SHOWN = 80
_MOST_CELLS = 2**22
"""Cells of the largest workbook that is read: four million."""
_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text cells.

    Args:
        path: File it was read from; in messages, the place of a table in memory.
        columns: Name of each column, without surrounding spaces.
        rows: Cells of each row, as many as there are columns, without surrounding spaces.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> tuple[str, ...]:
        """Return the cells of the first column of that name.

        Example:
            >>> TextTable(Path("a.csv"), ("id", "label"), (("a", "0"), ("b", "1"))).column("label")
            ('0', '1')
        """
        position = self.columns.index(name)
        return tuple(row[position] for row in self.rows)


def read_table(path: Path, error: type[SgpmilError] = LabelError) -> TextTable:
    """Read a table, in the format of its file name's suffix.

    Args:
        path: A .csv (separated by commas, semicolons or tabs), .tsv, .txt or .xlsx file.
        error: Error to raise when it cannot be read.

    Raises:
        SgpmilError: The table is absent, damaged or has no header; of the type `error`.
    """
    if not path.is_file():
        raise error(f"Expected a table, but there is no such file ({path}). Check the path.")
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".txt", ".xlsx"):
        raise error(
            f"Expected a .csv, .tsv or .xlsx table, but got '{path.name}' ({path}). "
            "Save it as one of these."
        )
    with damage_as(error, "a readable table", path, "Save it again as UTF-8 CSV."):
        rows = _xlsx_rows(path, error) if suffix == ".xlsx" else _text_rows(path)
    if not rows:
        raise error(f"Expected a table with a header, but got an empty one ({path}). Fill it.")
    header = rows[0]
    while header and not header[-1]:
        header.pop()
    return TextTable(path, tuple(header), _body(rows[1:], len(header), path, error))


def listed(names: list[str] | tuple[str, ...], limit: int = 3) -> str:
    """List the first few of many names for a message.

    Example:
        >>> listed(["a", "b", "c", "d", "e"])
        "'a', 'b', 'c' and 2 more"
    """
    short = (n if len(n) <= _LONGEST_SHOWN else f"{n[:_LONGEST_SHOWN]}…" for n in names[:limit])
    shown = ", ".join(f"'{name}'" for name in short)
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def to_spreadsheet(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would take for a formula.

    Example:
        >>> to_spreadsheet("=1+1"), to_spreadsheet("-1"), to_spreadsheet("tumour")
        ("'=1+1", '-1', 'tumour')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def from_spreadsheet(text: str) -> str:
    """Return the text that `to_spreadsheet` wrote.

    Example:
        >>> from_spreadsheet("'=1+1"), from_spreadsheet("'quoted'")
        ('=1+1', "'quoted'")
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


class SheetWriter:
    """Writes rows as CSV in which a spreadsheet finds no formula; `read_table` reads them back.

    Args:
        file: Open text file.
        lineterminator: End of a line.
    """

    def __init__(self, file: io.TextIOBase | IO[str], lineterminator: str = "\n") -> None:
        self._writer = csv.writer(file, lineterminator=lineterminator)

    def writerow(self, row: Iterable[object]) -> None:
        """Write a row; None is an empty cell."""
        self._writer.writerow(
            [to_spreadsheet(cell) if isinstance(cell, str) else cell for cell in row]
        )

    def writerows(self, rows: Iterable[Iterable[object]]) -> None:
        """Write rows."""
        for row in rows:
            self.writerow(row)


def sheet_text(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a header and rows as CSV in which a spreadsheet finds no formula.

    Example:
        >>> sheet_text(["slide_id"], [["=1+1"], [2]]).splitlines()
        ['slide_id', "'=1+1", '2']
    """
    text = io.StringIO()
    writer = SheetWriter(text)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _text_rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = file.readline()
        file.seek(0)
        separator = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header.count)
        reader = csv.reader(file, delimiter=separator, strict=True)
        # A cell that spans lines becomes one line: ids and labels never hold a break.
        rows = ([from_spreadsheet(" ".join(cell.split())) for cell in row] for row in reader)
        return [row for row in rows if any(row)]


def _xlsx_rows(path: Path, error: type[SgpmilError]) -> list[list[str]]:
    import openpyxl

    refuse_inflated_zip(path, error)
    workbook = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        sheet = workbook.worksheets[0]
        sheet.reset_dimensions()  # what the file claims; rows would be filled up to it
        rows, num_cells = [], 0
        for row in sheet.iter_rows(values_only=True):
            # A cell far down or far to the right makes as many empty ones before it.
            num_cells += 1 + len(row)
            if num_cells > _MOST_CELLS:
                raise error(
                    f"Expected a table of at most {_MOST_CELLS} cells, empty ones included, but "
                    f"got more ({path}). Remove what stands far below or beside it, or save it "
                    "as CSV."
                )
            cells = [_cell_text(cell) for cell in row]
            if any(cells):
                rows.append(cells)
        return rows
    finally:
        workbook.close()


def _cell_text(cell: object) -> str:
    return "" if cell is None else " ".join(str(cell).split())


def _body(
    rows: list[list[str]], width: int, path: Path, error: type[SgpmilError]
) -> tuple[tuple[str, ...], ...]:
    for number, row in enumerate(rows, start=1):
        if any(row[width:]):
            raise error(
                f"Expected {width} cells in each row, as in the header, but got {len(row)} in "
                f"row {number} ({path}). Quote cells that hold the separator."
            )
    return tuple(tuple((row + [""] * width)[:width]) for row in rows)
