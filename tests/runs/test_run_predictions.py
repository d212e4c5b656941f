from dataclasses import replace

import numpy as np
import pytest

from sgpmil.bags.splits import Fold
from sgpmil.errors import PredictionError, SplitError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.summary import evaluate
from sgpmil.runs.prediction_files import write_predictions, write_predictions_csv
from sgpmil.runs.prediction_folder import write_prediction_folder
from sgpmil.runs.run_folder import open_run
from sgpmil.runs.run_predictions import read_run_predictions, read_tested_folds

FOLDS = (
    Fold("first", ("a", "b"), ("c",), ("d", "e")),
    Fold("second", ("d", "e"), (), ("a", "b", "c")),
)


def table_of(slides, seed=0):
    rng = np.random.default_rng(seed)
    rows = [
        Prediction.from_samples(
            slide,
            slide,
            i % 2,
            rng.dirichlet([1, 1], size=3),
            InstanceScores(rng.random(4), rng.random(4), instance_labels=np.array([0, 1, 0, 1])),
        )
        for i, slide in enumerate(slides)
    ]
    return PredictionTable(tuple(rows), ("no", "yes"))


@pytest.fixture
def run(tmp_path):
    found = open_run(tmp_path / "run", FOLDS, {"model": "sgpmil"})
    for fold in FOLDS:
        found.write(fold.name, table_of(fold.test))
    return found


def test_folds_with_their_splits_and_metrics(run):
    found = read_run_predictions(run.path)
    assert found.unfinished == ()
    assert [fold.name for fold in found.folds] == ["first", "second"]
    assert [fold.split for fold in found.folds] == list(FOLDS)
    for fold in found.folds:
        expected = evaluate(run.read(fold.name), fold.name)
        assert fold.metrics == expected
        assert fold.metrics.instance is not None
        np.testing.assert_array_equal(fold.table.probs, run.read(fold.name).probs)


def test_unfinished_folds_are_named(run):
    (run.fold("first") / "predictions.parquet").unlink()
    found = read_run_predictions(str(run.path))
    assert found.unfinished == ("first",)
    (second,) = found.folds
    assert second.split == FOLDS[1]


def test_predictions_of_other_slides_than_the_test_slides_are_refused(run):
    run.write("second", table_of(FOLDS[0].test))
    with pytest.raises(PredictionError, match=r"fold second .* 2 are in its training list"):
        read_run_predictions(run.path)


def test_slides_named_like_files_are_their_own(tmp_path):
    folds = (Fold("0", ("x/a.svs",), (), ("b.tif", "c")),)
    run = open_run(tmp_path / "run", folds, {})
    run.write("0", table_of(("b.tif", "c")))
    (fold,) = read_run_predictions(run.path).folds
    assert fold.split.test == ("b.tif", "c")
    run.write("0", table_of(("x/a.svs".replace("/", "-"), "b.tif", "c")))
    with pytest.raises(PredictionError, match="not in its test list"):
        read_run_predictions(run.path)


def test_a_run_without_splits_is_unchecked_and_one_with_too_few_is_damaged(run):
    (run.path / "splits" / "splits_1.csv").unlink()
    with pytest.raises(SplitError, match="splits of 2 folds"):
        read_run_predictions(run.path)
    (run.path / "splits" / "splits_0.csv").unlink()
    (run.path / "splits").rmdir()
    assert [fold.split for fold in read_run_predictions(run.path).folds] == [None, None]


def test_predictions_of_one_test_set(tmp_path):
    table = table_of(("a", "b", "c"))
    write_predictions(tmp_path / "p.parquet", table)
    write_predictions_csv(tmp_path / "p.csv", table)
    write_prediction_folder(tmp_path / "folder", table.predictions, table.class_names)
    plain = PredictionTable(
        tuple(replace(p, instances=None) for p in table.predictions), table.class_names
    )
    for name, expected in (("p.parquet", plain), ("folder", table)):
        (fold,) = read_run_predictions(tmp_path / name).folds
        assert fold.metrics == evaluate(expected, "0")
        assert fold.split is None
    (fold,) = read_run_predictions(tmp_path / "p.csv").folds
    np.testing.assert_allclose(fold.table.probs, table.probs, atol=1e-6)


def test_nothing_there(tmp_path):
    with pytest.raises(PredictionError, match="there is nothing"):
        read_run_predictions(tmp_path / "no")
    with pytest.raises(PredictionError, match=r"neither run\.json nor"):
        read_run_predictions(tmp_path)


# With the scores of instances, and validation slides


def test_tested_folds_have_instances_and_their_own_validation_slides(run):
    run.write("first", table_of(FOLDS[0].test), table_of(FOLDS[0].val, seed=3))
    first, second = read_tested_folds(run.path).folds
    assert (first.name, second.name) == ("first", "second")
    assert first.test.predictions[0].instances is not None
    assert first.validation.slide_ids == ("c",)
    assert second.validation is None
    with pytest.raises(PredictionError, match="no --validation for the run"):
        read_tested_folds(run.path, run.path / "fold-first")


def test_the_folder_of_a_fold_brings_its_validation_slides(run, tmp_path):
    run.write("first", table_of(FOLDS[0].test), table_of(FOLDS[0].val, seed=3))
    (fold,) = read_tested_folds(run.fold("first")).folds
    assert fold.validation.slide_ids == ("c",)
    write_predictions(tmp_path / "other.parquet", table_of(("x", "y")))
    (fold,) = read_tested_folds(run.fold("first"), tmp_path / "other.parquet").folds
    assert fold.validation.slide_ids == ("x", "y")


def test_folds_judged_on_slides_of_their_training_are_refused(run):
    run.write("first", table_of(("a", "d")))
    with pytest.raises(PredictionError, match="1 are in its training list"):
        read_tested_folds(run.path)


def test_tables_of_another_systems_folds_are_a_run(tmp_path):
    for number in (0, 2, 10):
        write_predictions_csv(tmp_path / f"fold_{number}.csv", table_of(("a", "b"), seed=number))
    found = read_tested_folds(tmp_path).folds
    assert [fold.name for fold in found] == ["fold_0", "fold_2", "fold_10"]
    assert found[2].test.probs == pytest.approx(table_of(("a", "b"), seed=10).probs, abs=1e-6)
    compared = read_run_predictions(tmp_path).folds
    assert [fold.name for fold in compared] == ["fold_0", "fold_2", "fold_10"]
