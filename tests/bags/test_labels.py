from pathlib import Path

import openpyxl
import pytest

from sgpmil.bags.labels import (
    LabelTable,
    clean_slide_id,
    find_column,
    find_label_column,
    read_labels,
)
from sgpmil.bags.tables import TextTable
from sgpmil.errors import LabelError


def _write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_leading_zeros_and_suffixes(tmp_path):
    table = read_labels(_write(tmp_path / "a.csv", "slide_id,case_id,label\n007.svs,01,1\n8,,0\n"))
    assert table.slide_ids == ("007", "8")
    assert table.case_ids == ("01", "8")
    assert table.labels == ("1", "0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.svs", "a"),
        ("a.SVS", "a"),
        ("TCGA-1.9562FE79.h5", "TCGA-1.9562FE79"),
        ("TCGA-1.9562FE79", "TCGA-1.9562FE79"),
        ("S1.2", "S1.2"),
        ("dir\\b.ndpi", "b"),
        (" a.ome.tiff ", "a.ome"),
    ],
)
def test_clean_slide_id(text, expected):
    assert clean_slide_id(text) == expected


def test_case_is_the_slide_without_a_column(tmp_path):
    assert read_labels(_write(tmp_path / "a.tsv", "slide\tlabel\nx\ty\n")).case_ids == ("x",)


def test_named_columns(tmp_path):
    path = _write(tmp_path / "a.csv", "wsi_nr,grade,p\na,3,x\n")
    table = read_labels(path, slide_column="wsi_nr", label_column="grade", case_column="p")
    assert next(iter(table)).label == "3"
    assert table.row("a").case_id == "x"


def test_rows_without_a_label_are_left_out(tmp_path):
    table = read_labels(_write(tmp_path / "a.csv", "slide_id,label\na,1\nb,\nc,nan\nd,N/A\n"))
    assert table.slide_ids == ("a",)
    with pytest.raises(LabelError, match="at least one slide with a label"):
        read_labels(_write(tmp_path / "b.csv", "slide_id,label\na,\n"))


def test_duplicates_are_refused_even_if_equal(tmp_path):
    text = "slide_id,label\na,1\na.svs,1\nb,0\nb,1\nb,1\n"
    with pytest.raises(LabelError, match=r"2 named again: 'a \(2 times\)', 'b \(3 times\)'"):
        read_labels(_write(tmp_path / "a.csv", text))


def test_unknown_slide():
    table = LabelTable(("a",), ("p",), ("1",))
    assert "a" in table
    assert "b" not in table
    with pytest.raises(LabelError, match="'b'"):
        table.row("b")


def test_lengths_must_agree():
    with pytest.raises(LabelError, match="1 slides, 2 cases and 1 labels"):
        LabelTable(("a",), ("p", "q"), ("1",))


def test_stamp_tables(tmp_path):
    book = openpyxl.Workbook()
    for row in (["PATIENT", "KRAS"], ["p1", "mut"], ["p2", "wt"], ["p3", None]):
        book.active.append(row)
    book.save(tmp_path / "clini.xlsx")
    slides = "PATIENT,FILENAME\np1,x.1.h5\np1,y.h5\np2,z.h5\np3,u.h5\np4,v.h5\n"
    table = read_labels(
        tmp_path / "clini.xlsx", slide_table=_write(tmp_path / "slides.csv", slides)
    )
    assert table.slide_ids == ("x.1", "y", "z")
    assert table.case_ids == ("p1", "p1", "p2")
    assert table.labels == ("mut", "mut", "wt")


def test_patient_of_two_labels(tmp_path):
    clini = _write(tmp_path / "clini.csv", "PATIENT,KRAS\np1,mut\np1,wt\n")
    slides = _write(tmp_path / "slides.csv", "PATIENT,FILENAME\np1,x.h5\n")
    with pytest.raises(LabelError, match="'p1' has 'mut' and 'wt'"):
        read_labels(clini, slide_table=slides)


@pytest.mark.parametrize(
    ("name", "count", "classes"),
    [("camelyon16", 398, 2), ("tcga_nsclc", 1006, 2), ("bracs", 547, 3), ("panda", 10616, 6)],
)
def test_published_labels(shared_data, name, count, classes):
    table = read_labels(shared_data / "public_splits" / name / "labels.csv")
    assert len(table) == count
    assert len(set(table.labels)) == classes


def test_published_gleason_labels_are_ambiguous(shared_data):
    path = shared_data / "sicapv2" / "wsi_labels.csv"
    with pytest.raises(LabelError, match=r"Gleason_primary.*`label_column`"):
        read_labels(path)
    assert len(read_labels(path, label_column="Gleason_primary")) > 30


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
    assert find_column(_table(*columns), "slide") == expected


def test_given_column_wins_and_must_exist():
    table = _table("slide_id", "image")
    assert find_column(table, "slide", "image ") == "image"
    with pytest.raises(LabelError, match=r"'wsi'.*slide_id, image.*`slide_column`"):
        find_column(table, "slide", "wsi")


def test_patients_alone_hint_at_the_slide_table():
    with pytest.raises(LabelError, match="`slide_table`"):
        find_column(_table("PATIENT", "KRAS"), "slide")


def test_label_column():
    assert find_label_column(_table("slide_id", "class", "label")) == "label"
    assert find_label_column(_table("case_id", "slide_id", "BRAF", "fold_0")) == ("BRAF")
    assert find_label_column(_table("a", "b"), slide_column="a") == "b"


def test_ambiguous_label_column_names_columns_and_option():
    with pytest.raises(LabelError, match=r"slide_id, g1, g2 .*`label_column`"):
        find_label_column(_table("slide_id", "g1", "g2"))
    with pytest.raises(LabelError, match="Correct `label_column`"):
        find_label_column(_table("slide_id", "g1"), "g3")
