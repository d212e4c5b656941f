import math

import numpy as np
import pandas as pd
import pytest

from sgpmil.errors import PredictionError
from sgpmil.runs.prediction_columns import column_roles
from sgpmil.runs.prediction_files import read_predictions

from .test_prediction_files import write

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


def test_roles_of_the_columns():
    clam = column_roles(("", "slide_id", "Y", "Y_hat", "p_0", "p_1"), "it")
    assert (clam.slide, clam.patient, clam.label) == ("slide_id", None, "Y")
    assert (clam.probs, clam.class_names) == (("p_0", "p_1"), None)
    both = column_roles(("slide_id", "label", "Y", "p_0", "p_1"), "it")
    assert both.label == "label"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slide,y_pred0,y_pred1\na,0.5,0.5\n", "y_true is missing from slide"),
        ("name,y_true,y_pred0,y_pred1\na,0,0.5,0.5\n", "slide is missing"),
        ("slide,y_true,y_pred0\na,3.5,2.5\n", "y_pred1 is missing"),
        ("slide,y_true,y_pred0,y_pred2\na,0,0.5,0.5\n", "y_pred1 is missing"),
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
        (STAMP.replace("PATIENT", "CASE"), "slide_id, label, p_0, p_1 is missing"),
        ("PATIENT,A,B,A_x,A_y,B_x,B_y\np,x,y,1,0,1,0\n", "of one target .* those of A, B"),
        ("PATIENT,age,pred,loss\np,61,59.5,1.5\n", "p_0, p_1 is missing"),
        ("slide_id,label,p_normal,p_tumour\na,1,0.5,0.5\n", "classes normal, tumour .*'1'"),
        ("slide_id,label,p_0,p_1,p_0\na,0,1,0,1\n", "'p_0' twice"),
    ],
)
def test_unusable(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(PredictionError, match=message) as caught:
        read_predictions(path)
    assert str(path) in str(caught.value)


def test_metrics_of_another_system_are_those_of_its_numbers(tmp_path):
    from sgpmil.evaluation.summary import evaluate

    metrics = evaluate(read_predictions(write(tmp_path, STAMP))).slide
    assert metrics.num_slides == 2
    assert metrics.accuracy == 0.5
    assert metrics.auc == 1
    assert metrics.nll == pytest.approx(-(math.log(0.9) + math.log(0.4)) / 2)
