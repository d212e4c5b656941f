import csv
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.summary import evaluate
from sgpmil.evaluation.uncertainty.conformal import fit_conformal
from sgpmil.evaluation.uncertainty.decisions import decide, fit_deferral
from sgpmil.runs.prediction_files import (
    PredictionTable,
    read_predictions,
    write_predictions,
    write_predictions_csv,
)
from tests.evaluation.tables import random_table, table_of
from tests.evaluation.uncertain_tables import model_table


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


@pytest.mark.parametrize("write", [write_predictions, write_predictions_csv])
def test_novelty_is_kept_where_it_is_known(tmp_path, write):
    table = random_table(3, 2)
    rows = (
        replace(table.predictions[0], novel_share=0.25, novelty_p=0.125),
        *table.predictions[1:],
    )
    path = tmp_path / "predictions"
    write(path, PredictionTable(rows, table.target))
    first, *others = read_predictions(path).predictions
    assert (first.novel_share, first.novelty_p) == (0.25, 0.125)
    assert all(math.isnan(p.novel_share) and math.isnan(p.novelty_p) for p in others)
    write(path, table)
    assert all(math.isnan(p.novelty_p) for p in read_predictions(path).predictions)


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
        ("slide,label,p_0,p_1\na,0,1,0\n", "without slide_id. Add"),
        ("slide_id,p_0,p_1\na,1,0\n", "without label"),
        ("slide_id,label,prob\na,0,1\n", "without p_0, p_1"),
        ("slide_id,label,p_0,p_2\na,0,1,0\n", "without p_1"),
        ("slide_id,label,p_1\na,0,1\n", "without p_0"),
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


# The columns of other systems

STAMP = (
    "PATIENT,isMSIH,pred,isMSIH_MSIH,isMSIH_nonMSIH,loss\n"
    "TCGA-1,nonMSIH,nonMSIH,0.1,0.9,0.4\n"
    "TCGA-2,MSIH,nonMSIH,0.4,0.6,0.8\n"
    "TCGA-3,,nonMSIH,0.25,0.75,\n"
)


def test_stamp(tmp_path):
    table = read_predictions(write(tmp_path, STAMP))
    assert table.class_names == ("MSIH", "nonMSIH")
    assert table.slide_ids == ("TCGA-1", "TCGA-2", "TCGA-3")
    assert [p.case_id for p in table.predictions] == list(table.slide_ids)
    assert [p.label for p in table.predictions] == [1, 0, None]
    np.testing.assert_array_equal(table.probs, [[0.1, 0.9], [0.4, 0.6], [0.25, 0.75]])
    assert np.isnan(table.std).all()


def test_stamp_as_pandas_writes_it(tmp_path):
    # Classes that are numbers become 0.0 and 1.0 beside a blank; the index has no name.
    frame = pd.DataFrame(
        {
            "PATIENT": ["a", "b", "c"],
            "grade": [1, 0, None],
            "pred": [1, 1, 1],
            "grade_0": [0.2, 0.3, 0.4],
            "grade_1": [0.8, 0.7, 0.6],
        }
    )
    path = tmp_path / "patient-preds.csv"
    frame.to_csv(path)
    table = read_predictions(path)
    assert [p.label for p in table.predictions] == [1, 0, None]
    assert table.class_names == ("0", "1")
    assert np.isnan(table.std).all()


def test_stamp_classes_that_look_like_targets(tmp_path):
    text = "PATIENT,T,pred,T_a,T_a_b,T_a_c\nx,a_c,a,0.5,0.25,0.25\ny,None,a,1,0,0\n"
    table = read_predictions(write(tmp_path, text))
    assert table.class_names == ("a", "a_b", "a_c")
    assert [p.label for p in table.predictions] == [2, None]


def test_a_class_called_none_is_a_class(tmp_path):
    text = "PATIENT,T,T_None,T_high\nx,None,0.5,0.5\ny,,0.5,0.5\n"
    assert [p.label for p in read_predictions(write(tmp_path, text)).predictions] == [0, None]


@pytest.mark.parametrize("outcome", ["", "subtype-"])
def test_slideflow(tmp_path, outcome):
    path = tmp_path / "predictions.parquet"
    pd.DataFrame(
        {
            "slide": ["s1", "s2"],
            "patient": ["p1", "p1"],
            f"{outcome}y_true": [2, 0],
            f"{outcome}y_pred0": [0.2, 0.5],
            f"{outcome}y_pred1": [0.3, 0.25],
            f"{outcome}y_pred2": [0.5, 0.25],
            f"{outcome}uncertainty0": [0.01, 0.04],
            f"{outcome}uncertainty1": [0.02, 0.05],
            f"{outcome}uncertainty2": [0.03, 0.06],
        }
    ).to_parquet(path)
    table = read_predictions(path)
    assert table.slide_ids == ("s1", "s2")
    assert [p.case_id for p in table.predictions] == ["p1", "p1"]
    np.testing.assert_array_equal(table.labels, [2, 0])
    np.testing.assert_array_equal(table.probs, [[0.2, 0.3, 0.5], [0.5, 0.25, 0.25]])
    np.testing.assert_array_equal(table.std, [[0.01, 0.02, 0.03], [0.04, 0.05, 0.06]])
    assert table.class_names == ("0", "1", "2")


def test_slideflow_of_patients(tmp_path):
    text = ",patient,y_true,y_pred0,y_pred1\n0,p1,1.0,0.5,0.5\n1,p2,,1,0\n"
    table = read_predictions(write(tmp_path, text))
    assert table.slide_ids == ("p1", "p2")
    assert [p.case_id for p in table.predictions] == ["p1", "p2"]
    assert [p.label for p in table.predictions] == [1, None]
    renamed = text.replace("patient", "x-patient").replace("y_", "x-y_")
    assert read_predictions(write(tmp_path, renamed)).slide_ids == ("p1", "p2")


def test_probabilities_named_by_class(tmp_path):
    text = (
        "slide_id,case_id,label,p_normal,p_tumour,std_normal,std_tumour\n"
        "a,x,tumour,0.5,0.5,0.1,0.2\nb,,,1,0,,\n"
    )
    table = read_predictions(write(tmp_path, text))
    assert table.class_names == ("normal", "tumour")
    assert [p.label for p in table.predictions] == [1, None]
    assert [p.case_id for p in table.predictions] == ["x", "b"]
    np.testing.assert_array_equal(table.predictions[0].std, [0.1, 0.2])


@pytest.mark.parametrize("patient", ["case_id", "PATIENT", "patient"])
def test_the_patient_of_a_plain_table(tmp_path, patient):
    text = f"slide_id,{patient},label,p_0,p_1\na,x,0,1,0\nb,x,1,0,1\nc,,1,0,1\n"
    table = read_predictions(write(tmp_path, text))
    assert [p.case_id for p in table.predictions] == ["x", "x", "c"]


def test_a_label_comes_before_clams_y(tmp_path):
    table = read_predictions(write(tmp_path, "slide_id,label,Y,p_0,p_1\na,1,0,0.5,0.5\n"))
    assert [p.label for p in table.predictions] == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slide,y_pred0,y_pred1\na,0.5,0.5\n", "without y_true. Add"),
        ("name,y_true,y_pred0,y_pred1\na,0,0.5,0.5\n", "without slide"),
        ("slide,y_true,y_pred0\na,3.5,2.5\n", "without y_pred1"),
        ("slide,y_true,y_pred0,y_pred2\na,0,0.5,0.5\n", "without y_pred1"),
        (
            "slide,u-y_true,u-y_pred0,u-y_pred1,v-y_pred0\na,0,0.5,0.5,1\n",
            "of one target .* those of u, v",
        ),
        ("slide,y_true,y_pred0,y_pred1\na,0,3.5,-2.5\n", "between 0 and 1"),
        ("slide,y_true,y_pred0,y_pred1\na,0,1,0\na,0,1,0\n", "'a' twice"),
        (STAMP.replace("TCGA-2", "TCGA-1"), "'TCGA-1' twice"),
        (STAMP.replace("0.9", "0.8"), "sum to 1"),
        (STAMP.replace("0.1,", ","), "a number for every probability"),
        (STAMP.replace(",MSIH,non", ",MSS,non"), "classes MSIH, nonMSIH in column 'isMSIH'.*'MSS'"),
        (STAMP.replace("PATIENT", "CASE"), "without slide_id, label, p_0, p_1"),
        ("PATIENT,A,B,A_x,A_y,B_x,B_y\np,x,y,1,0,1,0\n", "of one target .* those of A, B"),
        ("PATIENT,age,pred,loss\np,61,59.5,1.5\n", "without slide_id, label, p_0, p_1"),
        ("slide_id,label,p_normal,p_tumour\na,1,0.5,0.5\n", "classes normal, tumour .*'1'"),
        ("slide_id,label,p_0,p_1,p_0\na,0,1,0,1\n", "'p_0' twice"),
    ],
)
def test_unusable_tables_of_other_systems(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(PredictionError, match=message) as caught:
        read_predictions(path)
    assert str(path) in str(caught.value)


def test_metrics_of_another_system_are_those_of_its_numbers(tmp_path):
    metrics = evaluate(read_predictions(write(tmp_path, STAMP))).slide
    assert metrics.num_slides == 2
    assert metrics.accuracy == 0.5
    assert metrics.auc == 1
    assert metrics.nll == pytest.approx(-(math.log(0.9) + math.log(0.4)) / 2)


# Decisions beside the predictions


def columns_of(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize(
    ("name", "write_table"), [("p.csv", write_predictions_csv), ("p.parquet", write_predictions)]
)
def test_decisions_are_two_more_columns(tmp_path, name, write_table):
    table, validation = model_table(12, 3, seed=1), model_table(60, 3, seed=2)
    path = tmp_path / name
    write_table(path, table)
    before, columns = read_predictions(path), columns_of(path)
    conformal = fit_conformal(validation, 0.8)
    decisions = decide(table, conformal, fit_deferral(validation, 0.25))
    write_table(path, table, decisions)
    found = columns_of(path)
    assert found.pop("prediction_set") == ["|".join(d.prediction_set) for d in decisions]
    assert found.pop("defer") == ["yes" if d.deferred else "no" for d in decisions]
    assert found == columns
    after = read_predictions(path)
    assert after.class_names == before.class_names
    np.testing.assert_array_equal(after.probs, before.probs)
    np.testing.assert_array_equal(after.std, before.std)
    assert after.labels.tolist() == before.labels.tolist()
    content = path.read_bytes()
    shuffled = PredictionTable(table.predictions[::-1], table.target)
    for other in (shuffled, PredictionTable(table.predictions[1:], table.target)):
        with pytest.raises(PredictionError, match="in their order"):
            write_table(path, table, decide(other, conformal))
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == [name]


# Columns named by class


def header_of(path):
    with path.open(newline="") as file:
        return next(csv.reader(file))


def test_csv_names_its_columns_by_class(tmp_path):
    path = tmp_path / "p.csv"
    table = table_of([[0.25, 0.75], [0.5, 0.5]], [1, None], ("normal", "tumour"))
    write_predictions_csv(path, table)
    frame = pd.read_csv(path)
    assert list(frame)[:8] == [
        *("slide_id", "case_id", "label", "predicted"),
        *("p_normal", "p_tumour", "std_normal", "std_tumour"),
    ]
    assert frame["label"].fillna("").tolist() == ["tumour", ""]
    assert frame["predicted"].tolist() == ["tumour", "normal"]
    assert frame["p_tumour"].tolist() == [0.75, 0.5]
    back = read_predictions(path)
    assert back.class_names == ("normal", "tumour")
    assert [p.label for p in back.predictions] == [1, None]


def test_csv_round_trip(tmp_path):
    table, path = random_table(9, 3), tmp_path / "p.csv"
    write_predictions_csv(path, table)
    back = read_predictions(path)
    for name in ("probs", "std"):
        np.testing.assert_allclose(getattr(back, name), getattr(table, name), atol=1e-6)
    assert (back.slide_ids, back.labels.tolist()) == (table.slide_ids, table.labels.tolist())
    assert [p.case_id for p in back.predictions] == [p.case_id for p in table.predictions]


def test_csv_of_an_earlier_version(tmp_path):
    # Numbers for classes in columns and labels, names in the column of predictions.
    text = (
        "slide_id,case_id,label,predicted,p_0,p_1,std_0,std_1,entropy\na,a,0,low,.9,.1,.1,.1,.3\n"
    )
    table = read_predictions(write(tmp_path, text))
    assert table.class_names == ("0", "1")
    assert table.labels.tolist() == [0]
    np.testing.assert_array_equal(table.probs, [[0.9, 0.1]])


@pytest.mark.parametrize(
    "names",
    [
        ("3", "4", "5"),  # numbers that are not those of the columns
        ("1", "0"),
        ("0", "tumour"),
        ("0", "1", "2"),
        ("a,b", 'say "x"', "c;d;e;f;g;h;i;j;k;l;m;n;o;p;q;r;s"),
        ("line\nbreak", "tab\tinside"),
        ("=1+1", "@x", "-1", "-a", "'=1+1", "+1"),
        ("NA", "nan", "None"),
        ("Läsion", "正常"),
        ("p_0", "std_0", "label", "predicted"),
    ],
)
def test_odd_names_come_back_from_csv(tmp_path, names):
    probs = np.full((len(names), len(names)), 1 / len(names))
    table = table_of(probs, range(len(names)), names)
    path = tmp_path / "p.csv"
    write_predictions_csv(path, table)
    assert f"p_{names[0]}" in header_of(path)
    back = read_predictions(path)
    assert back.class_names == names
    assert back.labels.tolist() == list(range(len(names)))


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=2, max_size=4, unique=True)
)
def test_any_names_keep_labels_and_probabilities(tmp_path_factory, names):
    probs = np.tile(np.linspace(1, 2, len(names)) / np.linspace(1, 2, len(names)).sum(), (2, 1))
    table = table_of(probs, [len(names) - 1, None], tuple(names))
    path = tmp_path_factory.mktemp("names") / "p.csv"
    write_predictions_csv(path, table)
    back = read_predictions(path)
    assert back.class_names in (tuple(names), tuple(map(str, range(len(names)))))
    assert [p.label for p in back.predictions] == [len(names) - 1, None]
    np.testing.assert_allclose(back.probs, probs, atol=1e-6)


@pytest.mark.parametrize("names", [("", "x"), (" a", "a"), ("a", "a "), ("x-y_pred0", "y")])
def test_names_that_a_table_cannot_hold_become_numbers(tmp_path, names):
    path = tmp_path / "p.csv"
    write_predictions_csv(path, table_of([[0.25, 0.75]], [1], names))
    assert "p_0" in header_of(path)
    back = read_predictions(path)
    assert (back.class_names, back.labels.tolist()) == (("0", "1"), [1])


def test_nothing_in_a_csv_is_a_formula(tmp_path):
    path = tmp_path / "p.csv"
    bad = '=HYPERLINK("http://x")'
    one = Prediction.from_samples(bad, "@case", 0, np.array([[0.5, 0.5]]))
    write_predictions_csv(path, PredictionTable((one,), ClassTarget((bad, "+x"))))
    with path.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell[:1] in "=+-@" and cell]
    back = read_predictions(path)
    assert (back.slide_ids, back.class_names) == ((bad,), (bad, "+x"))
    assert back.predictions[0].case_id == "@case"
