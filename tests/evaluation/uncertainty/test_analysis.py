import math

import numpy as np
import pytest
from hypothesis import given, settings

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import (
    adaptive_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
)
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import (
    measure_analysis,
    pooled_table,
    uncertainty_analysis,
)
from sgpmil.evaluation.uncertainty.conformal import fit_conformal
from sgpmil.evaluation.uncertainty.measures import UNCERTAINTY_MEASURES, error_auroc
from sgpmil.evaluation.uncertainty.selective import selective_prediction
from sgpmil.evaluation.uncertainty.set_metrics import set_metrics
from sgpmil.evaluation.uncertainty.temperature import fit_temperature
from sgpmil.evaluation.uncertainty.welch import correct_versus_wrong
from tests.evaluation.tables import table_of
from tests.evaluation.uncertain_tables import built, model_table, slides


def test_one_fold_bundles_the_parts():
    test = model_table(80, 3, seed=1, sharpness=2)
    validation = model_table(70, 3, seed=2, sharpness=2, name="v")
    found = uncertainty_analysis(test, validation, coverage=0.8)
    assert tuple(m.measure for m in found.measures) == UNCERTAINTY_MEASURES
    for analysis in found.measures:
        measure = analysis.measure
        assert analysis.error_auroc == error_auroc(test, measure)
        assert analysis.groups == correct_versus_wrong(test, measure)
        assert analysis.selective.aurc == selective_prediction(test, measure).aurc
    temperature = fit_temperature(validation)
    assert found.scaled.temperature == temperature
    for table, told in ((test, found.scaled.before), (temperature.apply(test), found.scaled.after)):
        probs, labels = table.probs, table.labels
        assert told.ece == expected_calibration_error(probs, labels)
        assert told.ace == adaptive_calibration_error(probs, labels)
        assert told.nll == negative_log_likelihood(probs, labels)
    for method, sets in zip(("lac", "aps"), found.sets, strict=True):
        expected = set_metrics(fit_conformal(validation, 0.8, method), test)
        assert (sets.method, sets.coverage) == (method, expected.coverage)
        assert sets.mean_size == expected.mean_size
    wrong = int((test.probs.argmax(axis=1) != test.labels).sum())
    assert (found.num_slides, found.num_wrong) == (80, wrong)
    assert found.notes == ()


def test_an_overconfident_model_gets_better():
    test = model_table(300, 3, seed=1, sharpness=3)
    validation = model_table(300, 3, seed=2, sharpness=3, name="v")
    scaled = uncertainty_analysis(test, validation).scaled
    assert scaled.temperature.value > 2
    assert scaled.after.ece < scaled.before.ece
    assert scaled.after.nll < scaled.before.nll


@settings(max_examples=30)
@given(slides(), slides(min_classes=5))
def test_nothing_breaks_it(drawn, other):
    test, validation = built(drawn), built(other)
    validation = PredictionTable(
        tuple(_renamed(p) for p in validation.predictions), validation.class_names
    )
    if validation.class_names != test.class_names:
        validation = None
    found = uncertainty_analysis(test, validation)
    accuracy = 1 - found.num_wrong / found.num_slides
    of_top = found.measures[UNCERTAINTY_MEASURES.index("max_probability")]
    assert of_top.selective.accuracies[-1] == pytest.approx(accuracy)
    assert math.isnan(of_top.error_auroc) == (accuracy in (0, 1))
    if validation is not None:
        # Sets of all classes, where the slides are too few, cover all.
        assert found.sets[0].coverage == 1.0 or len(validation) >= 9


def _renamed(prediction):
    from dataclasses import replace

    return replace(prediction, slide_id=f"v-{prediction.slide_id}")


def test_without_validation_slides():
    test = model_table(30, 2, seed=3)
    unlabelled = table_of([[0.5, 0.5]], [None], test.class_names)
    for validation in (None, unlabelled, PredictionTable((), test.class_names)):
        found = uncertainty_analysis(test, validation)
        assert found.scaled is None
        assert found.sets == ()
        assert len(found.measures) == 6


def test_validation_slides_that_are_tested_calibrate_nothing():
    test = model_table(30, 2, seed=3)
    found = uncertainty_analysis(test, test)
    assert found.scaled is None
    assert found.sets == ()
    assert "30 test slides are validation slides as well" in found.notes[0]


def test_notes_say_what_is_not_defined():
    test = table_of([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1], ("class 0", "class 1"))
    separated = table_of([[0.9, 0.1], [0.2, 0.8]], [0, 1], ("class 0", "class 1"))
    validation = PredictionTable(tuple(map(_renamed, separated.predictions)), test.class_names)
    notes = uncertainty_analysis(test, validation).notes
    assert [note.split(":")[0] for note in notes] == [
        "The temperature stopped at its lower bound 0.05",
        "A coverage of 0.9 needs at least 9 calibration slides, but there are 2",
        "Welch's test needs two correct and two wrong slides, but there are 2 and 1.",
    ]


def test_pooling_keeps_every_models_prediction_of_a_slide():
    one, other = model_table(20, 3, seed=1), model_table(20, 3, seed=2)
    pooled = pooled_table([one, other])
    assert pooled.slide_ids[0] == "0/s0000"
    assert pooled.slide_ids[20] == "1/s0000"
    np.testing.assert_array_equal(pooled.probs, np.vstack([one.probs, other.probs]))
    np.testing.assert_array_equal(pooled.std, np.vstack([one.std, other.std]))
    with pytest.raises(PredictionError, match="2 different lists"):
        pooled_table([one, model_table(5, 2)])
    with pytest.raises(PredictionError, match="0 different lists"):
        pooled_table([])


def test_unlabelled_slides_are_left_out():
    table = model_table(20, 2, seed=1)
    more = table_of([[0.5, 0.5]], [None], table.class_names).predictions
    both = PredictionTable((*table.predictions, *more), table.class_names)
    assert [m.error_auroc for m in measure_analysis(both)] == [
        m.error_auroc for m in measure_analysis(table)
    ]
    assert len(pooled_table([both])) == 20
    with pytest.raises(PredictionError, match="test slide with a label"):
        uncertainty_analysis(PredictionTable(more, table.class_names))
