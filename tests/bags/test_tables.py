import openpyxl
import pytest

from sgpmil.bags.tables import listed, read_table
from sgpmil.errors import LabelError, SplitError


def _write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_text_is_kept_as_written(tmp_path):
    table = read_table(_write(tmp_path / "a.csv", "id,RoI ,x\n007,1e5,NA\n"))
    assert table.columns == ("id", "RoI", "x")
    assert table.rows == (("007", "1e5", "NA"),)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators(tmp_path, separator):
    table = read_table(_write(tmp_path / "a.csv", separator.join("ab") + "\n1" + separator + "2\n"))
    assert table.column("b") == ("2",)


def test_tsv_keeps_commas(tmp_path):
    table = read_table(_write(tmp_path / "a.tsv", "a,b,c\td\n1,2\t3\n"))
    assert table.rows == (("1,2", "3"),)


def test_cells_that_span_lines(tmp_path):
    table = read_table(_write(tmp_path / "a.csv", 'id,site\na,"Lower lobe,\nlung"\nb,x\n'))
    assert table.rows == (("a", "Lower lobe, lung"), ("b", "x"))


def test_byte_order_mark_and_blank_lines(tmp_path):
    table = read_table(_write(tmp_path / "a.csv", "\ufeffid,b\n\n1,2\n,\n"))
    assert table.columns == ("id", "b")
    assert table.rows == (("1", "2"),)


def test_trailing_separators_in_the_header(tmp_path):
    table = read_table(_write(tmp_path / "a.csv", "a,b,,\n1,2,,\n"))
    assert table.columns == ("a", "b")
    assert table.rows == (("1", "2"),)


def test_ragged_rows(tmp_path):
    assert read_table(_write(tmp_path / "a.csv", "a,b,c\n1\n1,2,3,,\n")).rows[0] == ("1", "", "")
    with pytest.raises(LabelError, match=r"3 cells .* got 4 in row 2"):
        read_table(_write(tmp_path / "b.csv", "a,b,c\n1\n1,2,3,4\n"))


def test_xlsx(tmp_path):
    book = openpyxl.Workbook()
    for row in (["PATIENT ", "n"], ["007", 7], [8, 7.5], [None, None]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    table = read_table(tmp_path / "a.xlsx")
    assert table.columns == ("PATIENT", "n")
    assert table.rows == (("007", "7"), ("8", "7.5"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""),
        ("a.csv", b"id,label\n\xff\xfe,1\n"),
        ("a.csv", b'id,label\n"a,1\n'),
        ("a.xlsx", b"no workbook"),
        ("a.ods", b"x"),
    ],
)
def test_unreadable_tables_raise_the_error_asked_for(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SplitError, match=name):
        read_table(tmp_path / name, SplitError)


def test_absent(tmp_path):
    with pytest.raises(LabelError, match="no such file"):
        read_table(tmp_path / "a.csv")


def test_listed():
    assert listed(("a",)) == "'a'"
