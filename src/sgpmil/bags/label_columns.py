"""Finding the columns of a label table by the names that tools and people give them."""

import re
from collections.abc import Iterable

from sgpmil.bags.tables import TextTable
from sgpmil.errors import LabelError

__all__ = ["CASE_COLUMNS", "SLIDE_COLUMNS", "find_column", "find_label_column"]

SLIDE_COLUMNS = [
    "slide_id",
    "slide",
    "slide_name",
    "wsi_id",
    "wsi",
    "wsi_name",
    "bag_name",
    "bag_id",
    "bag",
    "image_id",
    "image",
    "image_name",
    "filename",
    "file_name",
    "file",
    "slide_path",
    "path",
]
"""Usual names of the column of slides, the surest first."""

CASE_COLUMNS = [
    "case_id",
    "case",
    "patient_id",
    "patient",
    "patientid",
    "case_submitter_id",
    "submitter_id",
    "subject_id",
    "subject",
    "donor_id",
    "donor",
]
"""Usual names of the column of patients, the surest first."""

_LABEL_COLUMNS = [
    "label",
    "slide_label",
    "bag_label",
    "target",
    "class",
    "category",
    "diagnosis",
    "y",
]
_FOLD = re.compile(r"(fold|split)(_?\d+)?")


def find_column(
    table: TextTable, what: str, usual: Iterable[str], given: str | None, *, required: bool = True
) -> str | None:
    """Return the name of a column as the table spells it.

    Args:
        table: The table.
        what: "slide" or "case", for the message.
        usual: Names to look for, the surest first.
        given: The user's name for it.
        required: Whether its absence is an error.

    Raises:
        LabelError: The column is not found.
    """
    if given is not None:
        return _given_column(table, given, what)
    by_key = _by_key(table)
    for name in usual:
        if name in by_key:
            return by_key[name]
    if not required:
        return None
    hint = (
        " Where labels are given to patients, add --slide-table."
        if what == "slide" and any(name in by_key for name in CASE_COLUMNS)
        else ""
    )
    raise LabelError(
        f"Expected a column of {what}s such as '{next(iter(usual))}', but got the columns "
        f"{', '.join(table.columns)} ({table.path}). Name it with --{what}-column.{hint}"
    )


def find_label_column(
    table: TextTable, given: str | None, slide_column: str | None, case_column: str | None
) -> str:
    """Return the column of labels: one of a usual name, or the only one that is left.

    Raises:
        LabelError: The column is not found, or there are several to choose from.
    """
    if given is not None:
        return _given_column(table, given, "label")
    by_key = _by_key(table)
    for name in _LABEL_COLUMNS:
        if name in by_key:
            return by_key[name]
    taken = {*SLIDE_COLUMNS, *CASE_COLUMNS}
    left = [
        name
        for key, name in by_key.items()
        if key not in taken and name not in (slide_column, case_column) and not _FOLD.fullmatch(key)
    ]
    if len(left) == 1:
        return left[0]
    raise LabelError(
        f"Expected a column 'label', but got the columns {', '.join(table.columns)} "
        f"({table.path}). Name the one to learn with --label-column."
    )


def _given_column(table: TextTable, given: str, what: str) -> str:
    name = given.strip()
    if name not in table.columns:
        raise LabelError(
            f"Expected a column '{name}', but got the columns {', '.join(table.columns)} "
            f"({table.path}). Correct --{what}-column."
        )
    return name


def _by_key(table: TextTable) -> dict[str, str]:
    """Index the named columns by lower case and underscores; the first of equal ones wins."""
    named = [name for name in table.columns if name]
    return {re.sub(r"[\s\-.]+", "_", name.casefold()): name for name in reversed(named)}
