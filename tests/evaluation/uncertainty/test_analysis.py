import math

import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.metrics import roc_auc_score

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
    uncertainty_over_folds,
)
from sgpmil.evaluation.uncertainty.conformal import fit_conformal, set_metrics
from sgpmil.evaluation.uncertainty.measures import (
    COVERAGES,
    UNCERTAINTY_MEASURES,
    correct_versus_wrong,
    error_auroc,
    selective_prediction,
    uncertainty,
)
from sgpmil.evaluation.uncertainty.temperature import fit_temperature
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
        assert told["ece"] == expected_calibration_error(probs, labels)
        assert told["ace"] == adaptive_calibration_error(probs, labels)
        assert told["nll"] == negative_log_likelihood(probs, labels)
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
    assert scaled.after["ece"] < scaled.before["ece"]
    assert scaled.after["nll"] < scaled.before["nll"]


@settings(max_examples=30)
@given(slides(), slides(min_classes=5))
def test_nothing_breaks_it(drawn, other):
    test, validation = built(drawn), built(other)
    validation = PredictionTable(
        tuple(_renamed(p) for p in validation.predictions), validation.target
    )
    if validation.class_names != test.class_names:
        validation = None
    found = uncertainty_analysis(test, validation)
    accuracy = 1 - found.num_wrong / found.num_slides
    of_top = found.measures[UNCERTAINTY_MEASURES.index("max_probability")]
    assert of_top.selective.accuracies[-1] == pytest.approx(accuracy)
    assert math.isnan(of_top.error_auroc) == (accuracy in (0, 1))
    if validation is not None:
        assert found.sets == ()  # they are fewer than 30
        assert "too few" in found.notes[0]


def _renamed(prediction):
    from dataclasses import replace

    return replace(prediction, slide_id=f"v-{prediction.slide_id}")


def test_without_validation_slides():
    test = model_table(30, 2, seed=3)
    unlabelled = table_of([[0.5, 0.5]], [None], test.class_names)
    for validation in (None, unlabelled, PredictionTable((), test.target)):
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
    validation = PredictionTable(tuple(map(_renamed, separated.predictions)), test.target)
    notes = uncertainty_analysis(test, validation).notes
    assert [note.split(":")[0] for note in notes] == [
        "Temperature and prediction sets are left out",
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
    both = PredictionTable((*table.predictions, *more), table.target)
    assert [m.error_auroc for m in measure_analysis(both)] == [
        m.error_auroc for m in measure_analysis(table)
    ]
    assert len(pooled_table([both])) == 20
    with pytest.raises(PredictionError, match="test slide with a label"):
        uncertainty_analysis(PredictionTable(more, table.target))


@pytest.fixture(scope="module")
def folds():
    return [
        (
            model_table(30, 3, seed=k, sharpness=2),
            model_table(35, 3, seed=100 + k, sharpness=2, name="v"),
        )
        for k in range(4)
    ]


def rows_of(rows):
    return {row.name: row for row in rows}


def test_means_over_folds_and_the_area_of_all_slides(folds):
    found = uncertainty_over_folds(folds)
    rows = rows_of(found.measure_rows)
    for number, measure in enumerate(UNCERTAINTY_MEASURES):
        own = [uncertainty_analysis(*fold).measures[number] for fold in folds]
        row = rows[f"{measure}: error AUROC"]
        values = [m.error_auroc for m in own]
        assert row.values == tuple(values)
        assert row.mean == pytest.approx(np.mean(values))
        assert row.sd == pytest.approx(np.std(values, ddof=1))
        wrong = np.concatenate([t.probs.argmax(axis=1) != t.labels for t, _ in folds])
        scores = np.concatenate([uncertainty(t, measure) for t, _ in folds])
        assert row.pooled == pytest.approx(roc_auc_score(wrong, scores))
        for position, coverage in enumerate(COVERAGES):
            accuracies = [m.selective.accuracies[position] for m in own]
            name = f"{measure}: accuracy at {coverage:.0%}"
            assert rows[name].mean == pytest.approx(np.mean(accuracies))
    assert len(rows) == 6 * 9


def test_calibration_rows(folds):
    found = uncertainty_over_folds(folds, coverage=0.8)
    rows = rows_of(found.calibration_rows)
    own = [uncertainty_analysis(*fold, 0.8) for fold in folds]
    temperatures = [fold.scaled.temperature.value for fold in own]
    assert rows["temperature"].mean == pytest.approx(np.mean(temperatures))
    assert math.isnan(rows["temperature"].pooled)
    assert rows["ECE after"].values == tuple(fold.scaled.after["ece"] for fold in own)
    covered = sum(int(fold.sets[1].class_covered.sum()) for fold in own)
    assert rows["APS: coverage"].pooled == pytest.approx(covered / 120)
    sizes = [fold.sets[0].mean_size for fold in own]
    assert rows["LAC: classes in a set"].values == pytest.approx(sizes)
    last = found.pooled_sets[0].target.names[-1]
    assert rows[f"LAC: coverage of {last}"].pooled == pytest.approx(
        found.pooled_sets[0].class_coverage[-1]
    )
    probs = np.concatenate(
        [fold.scaled.temperature.apply(t).probs for fold, (t, _) in zip(own, folds, strict=True)]
    )
    labels = np.concatenate([t.labels for t, _ in folds])
    assert rows["ECE after"].pooled == pytest.approx(expected_calibration_error(probs, labels))


def test_undefined_folds_do_not_spoil_the_mean(folds):
    right = table_of([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]], [0, 1], folds[0][0].class_names)
    found = uncertainty_over_folds([folds[0], (right, None), folds[1]])
    rows = rows_of(found.measure_rows)
    area = rows["entropy: error AUROC"]
    assert [math.isnan(value) for value in area.values] == [False, True, False]
    assert area.mean == pytest.approx(np.mean([area.values[0], area.values[2]]))
    assert not math.isnan(area.pooled)
    # A fold without validation slides has no temperature, and sets are not pooled over the rest.
    temperature = rows_of(found.calibration_rows)["temperature"]
    assert [math.isnan(value) for value in temperature.values] == [False, True, False]
    assert found.pooled_sets == ()
    assert math.isnan(rows_of(found.calibration_rows)["LAC: coverage"].pooled)
    # The fold without errors has an AURC of 0, and nothing in excess of it; both count.
    assert rows["entropy: AURC"].values[1] == 0.0
    assert rows["entropy: excess AURC"].values[1] == 0


def test_the_grid_shows_the_measures_that_are_there(folds):
    found = uncertainty_over_folds(folds)
    assert [row[0] for row in found.measure_grid] == [
        "std",
        "mean std",
        "entropy",
        "expected entropy",
        "mutual information",
        "max probability",
    ]
    assert all(len(row) == len(found.measure_header) for row in found.measure_grid)
    rows = rows_of(found.measure_rows)
    p = rows["entropy: Welch p, one-sided"].pooled
    assert found.measure_grid[2] == (
        "entropy",
        f"{rows['entropy: error AUROC'].mean:.3f}",
        f"{rows['entropy: error AUROC'].pooled:.3f}",
        f"{rows['entropy: AURC'].pooled:.3f}",
        f"{rows['entropy: excess AURC'].pooled:.3f}",
        f"{rows['entropy: accuracy at 80%'].pooled:.3f}",
        "<0.001" if p < 0.001 else f"{p:.3f}",
    )
    area = rows["entropy: error AUROC"]
    assert area.texts[1:] == (f"{area.mean:.3f} ± {area.sd:.3f}", f"{area.pooled:.3f}")
    assert found.measure_header[2] == "pooled"
    deterministic = table_of([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]], [0, 1, 0])
    names = [row[0] for row in uncertainty_over_folds([(deterministic, None)]).measure_grid]
    assert names == ["entropy", "expected entropy", "max probability"]


def test_the_grid_fits_a_terminal(folds):
    import io

    from rich.console import Console
    from rich.table import Table

    found = uncertainty_over_folds(folds)
    table = Table(*found.measure_header)
    for row in found.measure_grid:
        table.add_row(*row)
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    text = console.file.getvalue()
    assert "…" not in text
    assert all(cell in text for row in found.measure_grid for cell in row)


def test_undefined_is_a_dash():
    right = table_of([[0.9, 0.1], [0.2, 0.8]], [0, 1])
    found = uncertainty_over_folds([(right, None)])
    (first, *_) = found.measure_grid
    assert found.measure_header[1:4] == ("error\nAUROC", "AURC", "excess\nAURC")
    assert first[1:] == ("–", "0.000", "0.000", "1.000", "–")
    assert found.calibration_rows == ()
    assert rows_of(found.measure_rows)["std: error AUROC"].texts == ("std: error AUROC", "–", "–")
    assert found.notes == (
        "Welch's test needs two correct and two wrong slides, but there are 2 and 0.",
    )


def test_notes_are_said_once(folds):
    few = [
        (test, type(test)(validation.predictions[:5], validation.target))
        for test, validation in folds
    ]
    notes = uncertainty_over_folds(few).notes
    assert notes[0] == (
        "Temperature and prediction sets are left out: 5 validation slides are too few, they need "
        "30. (4 of 4 folds)"
    )
    assert sum("too few" in note for note in notes) == 1
    wide = uncertainty_over_folds(folds, coverage=0.99).notes
    assert any("needs at least 99 calibration slides" in note for note in wide)


@pytest.mark.parametrize(("num", "fits"), [(29, False), (30, True)])
def test_few_validation_slides_calibrate_nothing(num, fits):
    test, validation = model_table(40, 2, seed=3), model_table(num, 2, seed=4, name="v")
    found = uncertainty_analysis(test, validation)
    assert (found.scaled is not None, len(found.sets)) == (fits, 2 * fits)
    assert any("29 validation slides are too few" in note for note in found.notes) is not fits


def test_no_folds():
    with pytest.raises(PredictionError, match="at least one fold"):
        uncertainty_over_folds([])


def test_a_small_p_of_few_errors_is_put_into_doubt():
    # Wrong slides are all less certain, with as good as no spread: Welch's p is tiny.
    def table(num_wrong):
        labels = np.arange(40) % 2
        confidence = np.linspace(0.9, 0.95, 40)
        confidence[:num_wrong] = np.linspace(0.6, 0.601, num_wrong)
        said = np.where(np.arange(40) < num_wrong, 1 - labels, labels)
        probs = np.stack([1 - confidence, confidence], axis=1)
        return table_of(np.where(said[:, None] == 1, probs, probs[:, ::-1]), labels)

    few, enough = (uncertainty_over_folds([(table(num), None)]) for num in (5, 16))
    assert np.nanmax([row.mean for row in few.measure_rows if "Welch" in row.name]) < 1e-6
    (note,) = (note for note in few.notes if "may be chance" in note)
    assert note.startswith("Welch's p of entropy, expected entropy, max probability is below 0.05")
    assert "5 wrong and 35 right" in note
    assert not [note for note in enough.notes if "may be chance" in note]
