import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from sgpmil.evaluation.uncertainty import error_auroc, uncertainty

from .tables import random_table, table_of

MEASURES = ("std", "entropy", "mutual_information", "max_probability")


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("num_classes", [2, 4])
def test_against_sklearn(measure, num_classes):
    table = random_table(80, num_classes, seed=5)
    values = []
    for p in table.predictions:
        top = int(np.argmax(p.probs))
        values.append(
            {
                "std": p.std[top],
                "entropy": p.entropy,
                "mutual_information": p.mutual_information,
                "max_probability": -p.probs[top],
            }[measure]
        )
    wrong = [int(np.argmax(p.probs)) != p.label for p in table.predictions]
    assert error_auroc(table, measure) == pytest.approx(roc_auc_score(wrong, values))


@pytest.mark.parametrize("measure", MEASURES)
def test_undefined_is_nan(measure):
    right = table_of([[0.9, 0.1], [0.2, 0.8]], [0, 1])
    wrong = table_of([[0.9, 0.1], [0.2, 0.8]], [1, 0])
    unlabelled = table_of([[0.9, 0.1]], [None])
    for table in (right, wrong, unlabelled):
        assert math.isnan(error_auroc(table, measure))


def test_larger_is_less_certain():
    table = table_of([[0.99, 0.01], [0.5, 0.5]], [0, 1])
    np.testing.assert_allclose(uncertainty(table, "max_probability"), [0.01, 0.5])
    assert np.diff(uncertainty(table, "entropy"))[0] > 0


def test_table_without_the_measure(tmp_path):
    from sgpmil.evaluation.prediction_files import read_predictions

    path = tmp_path / "p.csv"
    path.write_text("slide_id,label,p_0,p_1\na,0,0.9,0.1\nb,0,0.4,0.6\n")
    table = read_predictions(path)
    assert math.isnan(error_auroc(table, "std"))
    assert error_auroc(table, "max_probability") == 1.0
