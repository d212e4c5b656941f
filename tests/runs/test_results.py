import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError, SplitError
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.summary import evaluate
from sgpmil.runs.prediction_files import write_predictions, write_predictions_csv
from sgpmil.runs.prediction_folder import write_prediction_folder
from sgpmil.runs.results import open_results
from sgpmil.runs.run import Run

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
    return PredictionTable(tuple(rows), ClassTarget(("no", "yes")))


@pytest.fixture
def run(tmp_path):
    found = Run.create(tmp_path / "run", FOLDS, {"model": "sgpmil"})
    for fold in FOLDS:
        found.folds[fold.name].write(table_of(fold.test))
    return found


def test_folds_with_their_splits_and_metrics(run):
    results = open_results(run.path)
    assert results.unfinished == ()
    found = results.evaluate()
    assert [fold.name for fold in found] == ["first", "second"]
    assert [fold.split for fold in found] == list(FOLDS)
    for fold in found:
        expected = evaluate(run.folds[fold.name].load().test, fold.name)
        assert fold.metrics == expected
        assert fold.metrics.instance is not None
        np.testing.assert_array_equal(fold.table.probs, run.folds[fold.name].load().test.probs)


def test_unfinished_folds_are_named(run):
    (run.folds["first"].path / "predictions.parquet").unlink()
    found = open_results(str(run.path))
    assert found.unfinished == ("first",)
    (second,) = found.evaluate()
    assert second.split == FOLDS[1]


def test_predictions_of_other_slides_than_the_test_slides_are_refused(run):
    run.folds["second"].write(table_of(FOLDS[0].test))
    with pytest.raises(PredictionError, match=r"fold second .* 2 are in its training list"):
        open_results(run.path).evaluate()


def test_slides_named_like_files_are_their_own(tmp_path):
    folds = (Fold("0", ("x/a.svs",), (), ("b.tif", "c")),)
    run = Run.create(tmp_path / "run", folds, {})
    run.folds["0"].write(table_of(("b.tif", "c")))
    (fold,) = open_results(run.path).evaluate()
    assert fold.split.test == ("b.tif", "c")
    run.folds["0"].write(table_of(("x/a.svs".replace("/", "-"), "b.tif", "c")))
    with pytest.raises(PredictionError, match="not in its test list"):
        open_results(run.path).evaluate()


def test_a_run_without_splits_is_unchecked_and_one_with_too_few_is_damaged(run):
    (run.path / "splits" / "splits_1.csv").unlink()
    with pytest.raises(SplitError, match="splits of 2 folds"):
        open_results(run.path).evaluate()
    (run.path / "splits" / "splits_0.csv").unlink()
    (run.path / "splits").rmdir()
    assert [fold.split for fold in open_results(run.path).evaluate()] == [None, None]


def test_predictions_of_one_test_set(tmp_path):
    table = table_of(("a", "b", "c"))
    write_predictions(tmp_path / "p.parquet", table)
    write_predictions_csv(tmp_path / "p.csv", table)
    write_prediction_folder(tmp_path / "folder", table.predictions, table.target)
    plain = PredictionTable(
        tuple(replace(p, instances=None) for p in table.predictions), table.target
    )
    for name, expected in (("p.parquet", plain), ("folder", table)):
        (fold,) = open_results(tmp_path / name).evaluate()
        assert fold.metrics == evaluate(expected, "0")
        assert fold.split is None
    (fold,) = open_results(tmp_path / "p.csv").evaluate()
    np.testing.assert_allclose(fold.table.probs, table.probs, atol=1e-6)


def test_nothing_there(tmp_path):
    with pytest.raises(PredictionError, match="there is nothing"):
        open_results(tmp_path / "no").evaluate()
    with pytest.raises(PredictionError, match=r"is not a run and has neither"):
        open_results(tmp_path).evaluate()


# With the scores of instances, and validation slides


def test_tested_folds_have_instances_and_their_own_validation_slides(run):
    run.folds["first"].write(table_of(FOLDS[0].test), table_of(FOLDS[0].val, seed=3))
    first, second = open_results(run.path).load()
    assert (first.name, second.name) == ("first", "second")
    assert first.test.predictions[0].instances is not None
    assert first.validation.slide_ids == ("c",)
    assert second.validation is None
    with pytest.raises(PredictionError, match="no `validation` for the run"):
        open_results(run.path, run.path / "fold-first").load()


def test_the_folder_of_a_fold_brings_its_validation_slides(run, tmp_path):
    run.folds["first"].write(table_of(FOLDS[0].test), table_of(FOLDS[0].val, seed=3))
    (fold,) = open_results(run.folds["first"].path).load()
    assert fold.name == "first"
    (paired,) = open_results(run.folds["first"].path).evaluate()
    assert paired.name == "0"
    assert fold.validation.slide_ids == ("c",)
    write_predictions(tmp_path / "other.parquet", table_of(("x", "y")))
    (fold,) = open_results(run.folds["first"].path, tmp_path / "other.parquet").load()
    assert fold.validation.slide_ids == ("x", "y")


def test_folds_judged_on_slides_of_their_training_are_refused(run):
    run.folds["first"].write(table_of(("a", "d")))
    with pytest.raises(PredictionError, match="1 are in its training list"):
        open_results(run.path).load()


def test_tables_of_another_systems_folds_are_a_run(tmp_path):
    for number in (0, 2, 10):
        write_predictions_csv(tmp_path / f"fold_{number}.csv", table_of(("a", "b"), seed=number))
    found = open_results(tmp_path).load()
    assert [fold.name for fold in found] == ["0", "2", "10"]
    assert found[2].test.probs == pytest.approx(table_of(("a", "b"), seed=10).probs, abs=1e-6)
    compared = open_results(tmp_path).evaluate()
    assert [fold.name for fold in compared] == ["0", "2", "10"]


def test_the_folder_of_a_fold_knows_its_run_and_other_folders_do_not(run, tmp_path):
    assert open_results(run.folds["first"].path).run.description == run.description
    (tmp_path / "run.json").write_text('{"name": "of another tool"}')
    table = table_of(("a", "b"))
    write_prediction_folder(tmp_path / "folder", table.predictions, table.target)
    assert open_results(tmp_path / "folder").run is None
    assert len(open_results(tmp_path / "folder").load()) == 1


@pytest.mark.slow
def test_results_are_evaluated_without_importing_training(run):
    code = """
import sys
from sgpmil.cli.main import run
try:
    run(["evaluate", sys.argv[1]])
finally:
    print([name for name in sys.modules if name.startswith(("sgpmil.training", "lightning"))])
"""
    command = [sys.executable, "-c", code, str(run.path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "[]"
