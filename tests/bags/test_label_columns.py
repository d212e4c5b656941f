from pathlib import Path

import pytest

from sgpmil.bags.label_columns import (
    CASE_COLUMNS,
    SLIDE_COLUMNS,
    find_column,
    find_label_column,
)
from sgpmil.bags.tables import TextTable
from sgpmil.errors import LabelError


def _table(*columns):
    return TextTable(Path("labels.csv"), columns, ())


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (("image", "slide_id"), "slide_id"),
        (("FILENAME", "PATIENT"), "FILENAME"),
        (("Slide ID", "x"), "Slide ID"),
        (("bag_name", "split"), "bag_name"),
    ],
)
def test_slide_column(columns, expected):
    assert find_column(_table(*columns), "slide", SLIDE_COLUMNS, None) == expected


def test_given_column_wins_and_must_exist():
    table = _table("slide_id", "image")
    assert find_column(table, "slide", SLIDE_COLUMNS, "image ") == "image"
    with pytest.raises(LabelError, match=r"'wsi'.*slide_id, image.*--slide-column"):
        find_column(table, "slide", SLIDE_COLUMNS, "wsi")


def test_optional_column():
    assert find_column(_table("x"), "case", CASE_COLUMNS, None, required=False) is None


def test_patients_alone_hint_at_the_slide_table():
    with pytest.raises(LabelError, match="--slide-table"):
        find_column(_table("PATIENT", "KRAS"), "slide", SLIDE_COLUMNS, None)


def test_label_column():
    assert find_label_column(_table("slide_id", "class", "label"), None, None, None) == "label"
    assert find_label_column(_table("case_id", "slide_id", "BRAF", "fold_0"), None, None, None) == (
        "BRAF"
    )
    assert find_label_column(_table("a", "b"), None, "a", None) == "b"


def test_ambiguous_label_column_names_columns_and_option():
    with pytest.raises(LabelError, match=r"slide_id, g1, g2 .*--label-column"):
        find_label_column(_table("slide_id", "g1", "g2"), None, None, None)
    with pytest.raises(LabelError, match="Correct --label-column"):
        find_label_column(_table("slide_id", "g1"), "g3", None, None)
