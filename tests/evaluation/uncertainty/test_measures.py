import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.metrics import roc_auc_score

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.measures import (
    UNCERTAINTY_MEASURES,
    error_auroc,
    slide_uncertainty,
    uncertainty,
    uncertainty_measure,
    wrong_slides,
)
from sgpmil.runs.prediction_files import read_predictions
from tests.evaluation.tables import random_table, table_of
from tests.evaluation.uncertain_tables import built, slides


def by_hand(prediction, measure):
    """Say a measure of one slide with Python numbers alone."""
    probs = [float(p) for p in prediction.probs]
    top = probs.index(max(probs))
    return {
        "std": float(prediction.std[top]),
        "mean_std": math.fsum(float(s) for s in prediction.std) / len(probs),
        "entropy": -math.fsum(p * math.log(p) for p in probs if p > 0),
        "expected_entropy": prediction.expected_entropy,
        "mutual_information": prediction.mutual_information,
        "max_probability": 1 - max(probs),
    }[measure]


@pytest.mark.parametrize("measure", UNCERTAINTY_MEASURES)
@pytest.mark.parametrize("num_classes", [2, 4])
def test_against_sklearn(measure, num_classes):
    table = random_table(80, num_classes, seed=5)
    values = [by_hand(p, measure) for p in table.predictions]
    np.testing.assert_allclose(uncertainty(table, measure), values)
    wrong = [int(np.argmax(p.probs)) != p.label for p in table.predictions]
    assert error_auroc(table, measure) == pytest.approx(roc_auc_score(wrong, values))


@settings(max_examples=40)
@given(slides())
def test_every_measure_slide_by_slide(drawn):
    table = built(drawn)
    for measure in UNCERTAINTY_MEASURES:
        expected = np.array([by_hand(p, measure) for p in table.predictions])
        np.testing.assert_allclose(slide_uncertainty(table, measure), expected, atol=1e-12)
        found = uncertainty(table, measure)
        of_posterior = measure in ("std", "mean_std", "mutual_information")
        if of_posterior and (expected <= 1e-9).all():
            assert np.isnan(found).all()
        else:
            np.testing.assert_allclose(found, expected, atol=1e-12)


@settings(max_examples=40)
@given(slides(min_classes=2))
def test_error_auroc_counts_pairs(drawn):
    table = built(drawn)
    wrong = np.array([int(np.argmax(p.probs)) != p.label for p in table.predictions])
    np.testing.assert_array_equal(wrong_slides(table), wrong)
    for measure in UNCERTAINTY_MEASURES:
        values = uncertainty(table, measure)
        gaps = np.subtract.outer(values[wrong], values[~wrong])
        found = error_auroc(table, measure)
        if gaps.size == 0 or np.isnan(gaps).any():
            assert math.isnan(found)
        else:
            assert found == pytest.approx(((gaps > 0) + 0.5 * (gaps == 0)).mean())


@pytest.mark.parametrize("measure", UNCERTAINTY_MEASURES)
def test_undefined_is_nan(measure):
    right = table_of([[0.9, 0.1], [0.2, 0.8]], [0, 1])
    wrong = table_of([[0.9, 0.1], [0.2, 0.8]], [1, 0])
    unlabelled = table_of([[0.9, 0.1]], [None])
    for table in (right, wrong, unlabelled):
        assert math.isnan(error_auroc(table, measure))


def test_a_model_without_a_posterior_is_not_half_right():
    table = table_of([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1])
    for measure in ("std", "mean_std", "mutual_information"):
        assert np.isnan(uncertainty(table, measure)).all()
        assert math.isnan(error_auroc(table, measure))
        np.testing.assert_array_equal(slide_uncertainty(table, measure), 0.0)
    for measure in ("entropy", "expected_entropy", "max_probability"):
        assert error_auroc(table, measure) == 1.0


def test_equal_samples_are_no_posterior():
    third = np.full((3, 3), 1 / 3)  # the mean of equal numbers may be off by a rounding step
    same = np.tile([0.1, 0.2, 0.7], (7, 1))
    predictions = tuple(
        Prediction.from_samples(str(i), str(i), 0, samples)
        for i, samples in enumerate((third, same, same[::-1]))
    )
    table = PredictionTable(predictions, ("a", "b", "c"))
    for measure in ("std", "mean_std", "mutual_information"):
        assert np.isnan(uncertainty(table, measure)).all()


def test_one_unknown_slide_makes_the_order_unknown():
    table = random_table(20, 2, seed=1)
    spoilt = replace(table.predictions[0], std=np.full(2, np.nan))
    table = PredictionTable((spoilt, *table.predictions[1:]), table.class_names)
    assert np.isnan(uncertainty(table, "std")).tolist() == [True, *[False] * 19]
    assert math.isnan(error_auroc(table, "std"))
    assert 0 <= error_auroc(table, "entropy") <= 1


def test_larger_is_less_certain():
    table = table_of([[0.99, 0.01], [0.5, 0.5]], [0, 1])
    np.testing.assert_allclose(uncertainty(table, "max_probability"), [0.01, 0.5])
    assert np.diff(uncertainty(table, "entropy"))[0] > 0


def test_table_without_the_measure(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("slide_id,label,p_0,p_1\na,0,0.9,0.1\nb,0,0.4,0.6\n")
    table = read_predictions(path)
    for measure in ("std", "mean_std", "expected_entropy", "mutual_information"):
        assert math.isnan(error_auroc(table, measure))
    assert error_auroc(table, "max_probability") == 1.0
    assert error_auroc(table, "entropy") == 1.0


def test_an_unknown_measure_is_refused():
    assert uncertainty_measure("mean_std") == "mean_std"
    with pytest.raises(PredictionError, match=r"got 'spread'\. Choose one of std, mean_std"):
        uncertainty_measure("spread")
