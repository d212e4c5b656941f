"""Split files of other tools, which are detected by their content, and our own in CLAM's format.

==============  ==================================================================
CLAM            `splits_<k>.csv` with columns train, val, test of slide names
CLAM, boolean   `splits_<k>_bool.csv` with a row a slide and True or False
Patho-Bench     a table with columns `fold_<k>` of "train" and "test"
torchmil        a table with columns `bag_name` and `split`
STAMP           `splits.json` with lists of patients
==============  ==================================================================
"""

import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sgpmil.bags.files import read_json, write_text
from sgpmil.bags.labels import LabelTable, clean_slide_id, find_column
from sgpmil.bags.splits import Fold
from sgpmil.bags.tables import TextTable, listed, read_table, sheet_text
from sgpmil.errors import LabelError, SplitError, damage_as

_CLAM_NAME = re.compile(r"splits?_(\d+)(_bool)?\.csv")
_FOLD_COLUMN = re.compile(r"fold_?(\d+)")
_WHOLE_SET = ("splits.json", "splits.csv", "k=all.tsv")
_PART_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def read_splits(path: Path, table: LabelTable | None = None) -> tuple[Fold, ...]:
    """Read folds from a folder or a file of any known format.

    The folds are returned as written; `check_folds` checks that they fit the labels.

    Args:
        path: Folder of CLAM's files, or one split file.
        table: Slides and their patients, for files that name patients.

    Raises:
        SplitError: There is no split, or it cannot be read.
    """
    with damage_as(SplitError, "splits", path, "Give a split file, or make one."):
        return _read_splits(path, table)


def _read_splits(path: Path, table: LabelTable | None) -> tuple[Fold, ...]:
    if path.is_dir():
        return _read_folder(path, table)
    if path.suffix.lower() == ".json":
        return _read_stamp(path, table)
    content = read_table(path, SplitError)
    folds = {int(m[1]): c for c in content.columns if (m := _FOLD_COLUMN.fullmatch(c.casefold()))}
    if folds:
        return tuple(_assigned(content, folds[k], str(k)) for k in sorted(folds))
    if "split" in content.columns:
        return (_assigned(content, "split", "0"),)
    number = _CLAM_NAME.fullmatch(path.name)
    return (_clam_fold(content, number[1] if number else "0"),)


def write_splits(folds: Sequence[Fold], folder: Path, *, overwrite: bool = False) -> None:
    """Write folds in CLAM's format, one `splits_<k>.csv` a fold in the order given.

    Args:
        folds: Folds to write.
        folder: Folder to write to; created if absent.
        overwrite: Replace the split files that are there already.

    Raises:
        SplitError: There are split files already, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = [p for p in folder.iterdir() if _CLAM_NAME.fullmatch(p.name)]
        if present and not overwrite:
            raise SplitError(
                f"Expected a folder without splits, but got {len(present)} split files ({folder}). "
                "Choose another folder, or replace them with `overwrite=True`."
            )
        written = {folder / f"splits_{k}.csv": fold for k, fold in enumerate(folds)}
        for path, fold in written.items():
            write_text(path, _clam_text(fold))
        # Folds left from an earlier, larger set would be read along with these.
        for path in present:
            if path not in written:
                path.unlink()
    except OSError as error:
        raise SplitError(
            f"Expected a folder that can be written, but got '{error.strerror}' ({folder}). "
            "Choose another one."
        ) from error


def _read_folder(folder: Path, table: LabelTable | None) -> tuple[Fold, ...]:
    files: dict[int, Path] = {}
    # Plain files sort after boolean ones here and so replace them.
    for path in sorted(folder.iterdir(), key=lambda p: "_bool" not in p.name):
        match = _CLAM_NAME.fullmatch(path.name)
        if match:
            files[int(match[1])] = path
    if files:
        return tuple(_clam_fold(read_table(files[k], SplitError), str(k)) for k in sorted(files))
    whole = [folder / name for name in _WHOLE_SET if (folder / name).is_file()]
    if len(whole) == 1:
        return read_splits(whole[0], table)
    found = listed(sorted(p.name for p in folder.iterdir())) or "an empty folder"
    raise SplitError(
        f"Expected split files such as 'splits_0.csv', but found {found} ({folder}). "
        "Make some with `sgpmil splits`."
    )


def _clam_fold(content: TextTable, name: str) -> Fold:
    columns = {column.casefold(): column for column in content.columns}
    if not {"train", "test"} <= columns.keys():
        raise SplitError(
            f"Expected columns train, val and test, or fold_0 ..., or split, but got "
            f"{', '.join(content.columns)} ({content.path}). Give a split file."
        )
    cells = {
        part: content.column(columns[part]) if part in columns else ()
        for part in ("train", "val", "test")
    }
    filled = {cell.casefold() for column in cells.values() for cell in column if cell}
    if filled and filled <= {"true", "false"}:
        slides = [clean_slide_id(row[0]) for row in content.rows]
        return Fold(name, **{part: _flagged(slides, column) for part, column in cells.items()})
    return Fold(
        name,
        **{part: tuple(clean_slide_id(c) for c in column if c) for part, column in cells.items()},
    )


def _flagged(slides: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    pairs = zip(slides, flags, strict=False)
    return tuple(slide for slide, flag in pairs if flag.casefold() == "true")


def _assigned(content: TextTable, column: str, name: str) -> Fold:
    """Make a fold of a table that gives each slide the name of its part."""
    try:
        slide_column = find_column(content, "slide")
    except LabelError as error:
        raise SplitError(str(error)) from None
    parts: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    slides, values = content.column(slide_column), content.column(column)
    for slide, value in zip(slides, values, strict=True):
        if not value:
            continue
        if value.casefold() not in _PART_NAMES:
            raise SplitError(
                f"Expected train, val or test in column '{column}', but got '{value}' for "
                f"'{slide}' ({content.path}). Correct the cell."
            )
        parts[_PART_NAMES[value.casefold()]].append(clean_slide_id(slide))
    return Fold(name, **{part: tuple(slides) for part, slides in parts.items()})


def _read_stamp(path: Path, table: LabelTable | None) -> tuple[Fold, ...]:
    if table is None:
        raise SplitError(
            f"Expected labels to find the slides of the patients in {path}, but got none. Give "
            "the table of labels."
        )
    try:
        splits = read_json(path)["splits"]
        patients = [
            {p: [str(v) for v in _patients(split, p)] for p in ("train", "val", "test")}
            for split in splits
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SplitError(
            "Expected JSON with 'splits', each with 'train_patients' and 'test_patients', but "
            f"got '{error}' ({path}). Give the splits.json that STAMP wrote."
        ) from error
    slides: dict[str, list[str]] = {}
    for row in table:
        slides.setdefault(row.case_id, []).append(row.slide_id)
    named = {v for fold in patients for values in fold.values() for v in values}
    unknown = sorted(named - slides.keys())
    if unknown:
        raise SplitError(
            f"Expected patients of the label table, but got {len(unknown)} it does not have: "
            f"{listed(unknown)} ({path}). Check the column of cases."
        )
    return tuple(
        Fold(
            str(k),
            **{part: tuple(s for v in values for s in slides[v]) for part, values in fold.items()},
        )
        for k, fold in enumerate(patients)
    )


def _patients(split: Any, part: str) -> list[Any]:
    found = split.get(f"{part}_patients", []) if part == "val" else split[f"{part}_patients"]
    if not isinstance(found, list):
        raise TypeError(f"{part}_patients is no list")
    return found


def _clam_text(fold: Fold) -> str:
    rows = zip_longest(fold.train, fold.val, fold.test, fillvalue="")
    return sheet_text(("train", "val", "test"), rows)
