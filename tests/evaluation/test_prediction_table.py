import numpy as np
import pytest

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable

from .tables import random_table, table_of

P = [0.25, 0.75]


def test_arrays_follow_the_rows():
    table = table_of([P, [0.9, 0.1]], [1, 0])
    np.testing.assert_array_equal(table.probs, [P, [0.9, 0.1]])
    np.testing.assert_array_equal(table.labels, [1, 0])
    np.testing.assert_array_equal(table.std, np.zeros((2, 2)))
    assert table.slide_ids == ("slide-000", "slide-001")
    assert (len(table), table.num_classes) == (2, 2)


def test_labelled_keeps_labels_only():
    table = table_of([P, P, P], [1, None, 0])
    with pytest.raises(PredictionError, match=r"1 of 3 have none.*labelled"):
        _ = table.labels
    kept = table.labelled()
    assert kept.slide_ids == ("slide-000", "slide-002")
    np.testing.assert_array_equal(kept.labels, [1, 0])
    empty = table_of([P], [None]).labelled()
    assert empty.probs.shape == (0, 2)


@pytest.mark.parametrize("label", [-1, 2])
def test_label_out_of_range(label):
    with pytest.raises(
        PredictionError, match=f"between 0 and 1 in the predictions, but got {label}"
    ):
        table_of([P], [label])


def test_duplicates_and_class_count():
    one = random_table(1).predictions[0]
    with pytest.raises(PredictionError, match="'0000' twice"):
        PredictionTable((one, one), ("a", "b"))
    with pytest.raises(PredictionError, match="Expected 3 probabilities"):
        PredictionTable((one,), ("a", "b", "c"))


def test_sum_tolerance():
    table_of([[0.5, 0.5009]], [0])
    with pytest.raises(PredictionError, match="sum to 1"):
        table_of([[0.5, 0.502]], [0])
