import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import expected_calibration_error
from sgpmil.evaluation.uncertainty.analysis import uncertainty_analysis
from sgpmil.evaluation.uncertainty.folds import uncertainty_over_folds
from sgpmil.evaluation.uncertainty.measures import UNCERTAINTY_MEASURES, uncertainty
from sgpmil.evaluation.uncertainty.selective import COVERAGES
from tests.evaluation.tables import table_of
from tests.evaluation.uncertain_tables import model_table


@pytest.fixture(scope="module")
def folds():
    return [
        (
            model_table(30, 3, seed=k, sharpness=2),
            model_table(25, 3, seed=100 + k, sharpness=2, name="v"),
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
    assert len(rows) == 6 * 10


def test_calibration_rows(folds):
    found = uncertainty_over_folds(folds, coverage=0.8)
    rows = rows_of(found.calibration_rows)
    own = [uncertainty_analysis(*fold, 0.8) for fold in folds]
    temperatures = [fold.scaled.temperature.value for fold in own]
    assert rows["temperature"].mean == pytest.approx(np.mean(temperatures))
    assert math.isnan(rows["temperature"].pooled)
    assert rows["ECE after"].values == tuple(fold.scaled.after.ece for fold in own)
    covered = sum(int(fold.sets[1].class_covered.sum()) for fold in own)
    assert rows["APS: coverage"].pooled == pytest.approx(covered / 120)
    sizes = [fold.sets[0].mean_size for fold in own]
    assert rows["LAC: classes in a set"].values == pytest.approx(sizes)
    last = found.pooled_sets[0].class_names[-1]
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
    p = rows["entropy: Welch p, wrong less certain"].pooled
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
        (test, type(test)(validation.predictions[:5], validation.class_names))
        for test, validation in folds
    ]
    notes = uncertainty_over_folds(few).notes
    assert sum("needs at least 9 calibration slides" in note for note in notes) == 1
    assert any(note.endswith("every set holds all classes. (4 of 4 folds)") for note in notes)


def test_no_folds():
    with pytest.raises(PredictionError, match="at least one fold"):
        uncertainty_over_folds([])
