import numpy as np
import pandas as pd
import pytest

from sgpmil.errors import PredictionError
from sgpmil.runs.prediction_files import (
    PredictionTable,
    read_predictions,
    write_predictions,
)
from tests.evaluation.tables import random_table, table_of


@pytest.mark.parametrize("num_classes", [2, 5])
def test_parquet_round_trip(tmp_path, num_classes):
    table = random_table(9, num_classes)
    path = tmp_path / "deep" / "predictions.parquet"
    write_predictions(path, table)
    back = read_predictions(path)
    assert back.class_names == table.class_names
    for old, new in zip(table.predictions, back.predictions, strict=True):
        assert (old.slide_id, old.case_id, old.label) == (new.slide_id, new.case_id, new.label)
        np.testing.assert_array_equal(old.probs, new.probs)
        np.testing.assert_array_equal(old.std, new.std)
        assert old.entropy == new.entropy
        assert old.expected_entropy == new.expected_entropy
        assert old.mutual_information == new.mutual_information
    assert [file.name for file in path.parent.iterdir()] == ["predictions.parquet"]


def test_parquet_columns_as_pandas_sees_them(tmp_path):
    path = tmp_path / "p.parquet"
    write_predictions(path, table_of([[0.25, 0.75], [0.5, 0.5]], [1, None]))
    frame = pd.read_parquet(path)
    assert list(frame) == [
        *("slide_id", "case_id", "label", "p_0", "p_1", "std_0", "std_1"),
        *("entropy", "expected_entropy", "mutual_information"),
    ]
    assert frame["p_1"].tolist() == [0.75, 0.5]
    assert frame["label"].isna().tolist() == [False, True]
    assert [p.label for p in read_predictions(path).predictions] == [1, None]


def test_parquet_of_another_system(tmp_path):
    path = tmp_path / "other.parquet"
    pd.DataFrame(
        {"slide_id": [7, 8], "label": [0, 1], "p_0": [1.0, 0.5], "p_1": [0.0, 0.5]}
    ).to_parquet(path)
    table = read_predictions(path)
    assert table.slide_ids == ("7", "8")
    assert table.class_names == ("0", "1")


def write(tmp_path, text):
    path = tmp_path / "predictions.csv"
    path.write_text(text)
    return path


def test_plain_csv(tmp_path):
    path = write(tmp_path, "\ufeffslide_id,label,p_0,p_1\n007,1,0.25,0.75\nNA,,0.5,0.5\n\n")
    table = read_predictions(path)
    assert isinstance(table, PredictionTable)
    assert table.slide_ids == ("007", "NA")
    assert [p.label for p in table.predictions] == [1, None]
    first = table.predictions[0]
    assert first.case_id == "007"
    assert first.entropy == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75))
    assert np.isnan(first.std).all()
    assert np.isnan(first.mutual_information)


def test_clam_csv(tmp_path):
    text = ",slide_id,Y,Y_hat,p_0,p_1\n0,tumor_001,1.0,0.0,0.6,0.4\n1,normal_9,0.0,0.0,0.9,0.1\n"
    table = read_predictions(write(tmp_path, text))
    np.testing.assert_array_equal(table.labels, [1, 0])
    np.testing.assert_array_equal(table.probs, [[0.6, 0.4], [0.9, 0.1]])


def test_csv_with_measures(tmp_path):
    text = "slide_id,case_id,label,p_0,p_1,std_0,std_1,mutual_information\na,c,0,0.5,0.5,.1,.2,.3\n"
    prediction = read_predictions(write(tmp_path, text)).predictions[0]
    np.testing.assert_array_equal(prediction.std, [0.1, 0.2])
    assert prediction.case_id == "c"
    assert prediction.mutual_information == 0.3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("slide_id,label,p_0,p_1\n", "at least one slide"),
        ("slide,label,p_0,p_1\na,0,1,0\n", "slide_id is missing from slide"),
        ("slide_id,p_0,p_1\na,1,0\n", "label is missing"),
        ("slide_id,label,prob\na,0,1\n", "p_0, p_1 is missing"),
        ("slide_id,label,p_0,p_2\na,0,1,0\n", "p_1 is missing"),
        ("slide_id,label,p_1\na,0,1\n", "p_0 is missing"),
        ("slide_id,label,p_0,p_1\na,0,1.5,-0.5\n", "between 0 and 1"),
        ("slide_id,label,p_0,p_1\na,0,0.5,0.4\n", "sum to 1"),
        ("slide_id,label,p_0,p_1\na,0,nan,0.4\n", "a number for every probability"),
        ("slide_id,label,p_0,p_1\na,0,,0.4\n", "a number for every probability"),
        ("slide_id,label,p_0,p_1\na,0,inf,0.4\n", "a number for every probability"),
        ("slide_id,label,p_0,p_1\na,0,high,0.4\n", "numbers in column 'p_0'"),
        ("slide_id,label,p_0,p_1\na,0,1,0\na,0,1,0\n", "'a' twice"),
        ("slide_id,label,p_0,p_1\n,0,1,0\n", "row 0 has none"),
        ("slide_id,label,p_0,p_1\na,2,1,0\n", "between 0 and 1 in .*but got 2"),
        ("slide_id,label,p_0,p_1\na,-1,1,0\n", "but got -1"),
        ("slide_id,label,p_0,p_1\na,0.5,1,0\n", "class indices"),
        ("slide_id,label,p_0,p_1\na,tumour,1,0\n", "numbers in column 'label'"),
        ("slide_id,label,p_0,p_1\na,0,1\n", "4 values a row .* got 3 in row 2"),
    ],
)
def test_unusable_csv(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(PredictionError, match=message) as caught:
        read_predictions(path)
    assert str(path) in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(PredictionError, match="there is none"):
        read_predictions(tmp_path / "absent.parquet")
    with pytest.raises(PredictionError, match="there is none"):
        read_predictions(tmp_path)
    binary = tmp_path / "x.csv"
    binary.write_bytes(b"\xff\xfe\x00slide")
    with pytest.raises(PredictionError, match="UTF-8"):
        read_predictions(binary)


def test_damaged_parquet(tmp_path):
    path = tmp_path / "p.parquet"
    write_predictions(path, random_table(50))
    content = path.read_bytes()
    for part in (b"", content[:100], content[:-9], b"slide_id,label\n"):
        path.write_bytes(part)
        with pytest.raises(PredictionError, match="cannot be read"):
            read_predictions(path)


def test_metadata_that_does_not_fit(tmp_path):
    import pyarrow.parquet as pq

    path = tmp_path / "p.parquet"
    write_predictions(path, random_table(3, 3))
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["p_2"]), path)
    with pytest.raises(PredictionError, match=r"of 3 classes .* but got 2"):
        read_predictions(path)
    pq.write_table(table.replace_schema_metadata({b"sgpmil": b"{"}), path)
    with pytest.raises(PredictionError, match="cannot be read"):
        read_predictions(path)


def test_a_patient_that_is_not_available_is_none(tmp_path):
    path = tmp_path / "na.csv"
    rows = ["a,NA,1,0.2,0.8", "b,NA,0,0.7,0.3", "c,p1,0,0.9,0.1", "d,,1,0.4,0.6"]
    path.write_text("\n".join(["slide_id,case_id,label,p_0,p_1", *rows]) + "\n")
    assert [p.case_id for p in read_predictions(path).predictions] == ["a", "b", "p1", "d"]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_whatever_separates_the_columns(tmp_path, mark):
    path = tmp_path / "table.csv"
    rows = [("slide_id", "label", "p_0", "p_1"), ("a", "1", "0.25", "0.75")]
    path.write_text("\n".join(mark.join(row) for row in rows) + "\n")
    assert read_predictions(path).probs.tolist() == [[0.25, 0.75]]
