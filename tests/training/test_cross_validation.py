import json
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.reading import read_bags
from sgpmil.bags.split_files import write_splits
from sgpmil.bags.splits import Fold, MissingSlideWarning, SharedCaseWarning
from sgpmil.errors import (
    BagError,
    LabelError,
    RunFolderError,
    SettingsError,
    SgpmilError,
    SplitError,
    TrainingError,
)
from sgpmil.evaluation.predictor import predict
from sgpmil.evaluation.summary import evaluate
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.run import Run, run_lock
from sgpmil.training import cross_validation
from sgpmil.training.cross_validation import cross_validate
from sgpmil.training.fit import fit
from sgpmil.training.progress import FoldProgress

from .conftest import TINY, StopHere, epochs_of, files_under, quick, toy_bags


def fold(name, test, val=()):
    train = [f"s{i}" for i in range(12) if f"s{i}" not in (*test, *val)]
    return Fold(name, tuple(train), tuple(val), tuple(test))


FOLDS = (
    fold("0", ("s0", "s1", "s5")),
    fold("1", ("s2", "s3"), val=("s6", "s7")),
    fold("2", ("s11", "s4")),
)


def run_all(run=None, folds=FOLDS, bags=None, **values):
    options = {
        name: values.pop(name)
        for name in ("resume", "overwrite", "allow_missing", "only_folds", "on_shared_case")
        if name in values
    }
    return cross_validate(
        toy_bags(12) if bags is None else bags,
        folds,
        model_settings=TINY["sgpmil"],
        training=quick(**({"epochs": 2} | values)),
        run=run,
        progress=False,
        **options,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return run_all(folder)


def same_tables(one, other):
    assert one.slide_ids == other.slide_ids
    np.testing.assert_array_equal(one.probs, other.probs)
    np.testing.assert_array_equal(one.std, other.std)


def test_each_fold_is_scored_on_its_own_test_set(done):
    assert [table.slide_ids for table in done.predictions] == [f.test for f in FOLDS]
    for table, metrics, split in zip(done.predictions, done.metrics, FOLDS, strict=True):
        assert metrics.fold == split.name
        assert metrics.slide.num_slides == len(split.test)
        assert [p.label for p in table.predictions] == [int(s[1:]) % 2 for s in split.test]
        assert table.class_names == ("class0", "class1")


def test_a_fold_is_what_fit_and_predict_give_by_hand(done):
    bags = toy_bags(12)
    split = FOLDS[1]
    model = fit(
        bags.subset(split.train),
        val=bags.subset(split.val),
        model_settings=TINY["sgpmil"],
        training=quick(epochs=2),
    )
    same_tables(predict(model, bags.subset(split.test)), done.predictions[1])
    validation = Run.open(done.folder).folds["1"].load().validation
    same_tables(predict(model, bags.subset(split.val)), validation)


def test_what_a_run_leaves_on_disk(done):
    files = set(files_under(done.folder))
    assert {"run.json", "metrics.parquet", "splits/splits_0.csv"} <= files
    for split in FOLDS:
        folder = f"fold-{split.name}/"
        assert {
            f"{folder}{name}"
            for name in (
                "checkpoint.safetensors",
                "checkpoint.json",
                "last.ckpt",
                "metrics.csv",
                "predictions.parquet",
            )
        } <= files
        scores = {f for f in files if f.startswith(f"{folder}attention/")}
        assert scores == {f"{folder}attention/{slide}.h5" for slide in split.test}
    assert not [f for f in files if f.endswith(".tmp")]
    description = json.loads((done.folder / "run.json").read_text())
    assert description["settings"]["training"]["seed"] == 0
    assert description["settings"]["model_settings"]["num_inducing"] == 5
    assert description["settings"]["data_fingerprint"] == toy_bags(12).fingerprint()
    assert description["settings"]["class_names"] == ["class0", "class1"]


def test_the_metrics_are_those_of_the_predictions_on_disk(done):
    stored = pd.read_parquet(done.folder / "metrics.parquet")
    run = Run.open(done.folder)
    again = tuple(evaluate(run.folds[name].load().test, name) for name in run.folds)
    # As text, so that an undefined value equals itself.
    assert repr(again) == repr(done.metrics)
    expected = pd.DataFrame([{"fold": metrics.fold, **metrics.row} for metrics in again])
    pd.testing.assert_frame_equal(stored, expected, check_dtype=False)
    for name, table in zip(run.folds, done.predictions, strict=True):
        same_tables(read_predictions(run.folds[name].path / "predictions.parquet"), table)


def test_the_summary_is_over_folds(done):
    summary = {s.name: s for s in done.summary()}
    values = [m.slide.accuracy for m in done.metrics]
    assert summary["accuracy"].values == tuple(values)
    assert summary["accuracy"].mean == pytest.approx(np.mean(values))


def test_the_same_seed_gives_the_same_predictions_and_another_does_not(done, tmp_path):
    again = run_all(tmp_path / "again")
    for split, one, other in zip(FOLDS, done.predictions, again.predictions, strict=True):
        same_tables(one, other)
        name = f"fold-{split.name}/predictions.parquet"
        assert (done.folder / name).read_bytes() == (again.folder / name).read_bytes()
    other = run_all(seed=1, only_folds=["0"])
    assert not np.array_equal(other.predictions[0].probs, done.predictions[0].probs)


def test_without_a_run_folder_nothing_is_written(done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_all()
    assert found.folder is None
    assert list(tmp_path.iterdir()) == []
    for one, other in zip(found.predictions, done.predictions, strict=True):
        same_tables(one, other)


def test_a_separable_set_is_separated():
    found = run_all(folds=FOLDS[:2], epochs=12, learning_rate=0.02)
    assert [m.slide.auc for m in found.metrics] == [1.0, 1.0]


def test_instance_labels_are_evaluated():
    bags = toy_bags(12)
    labels = [np.full(bag.num_instances, bag.label) for bag in bags]
    for values in labels[1::2]:
        values[0] = 0
    labelled = BagDataset.from_arrays(
        [bag.features for bag in bags],
        bags.labels,
        slide_ids=bags.slide_ids,
        class_names=bags.class_names,
        instance_labels=labels,
    )
    found = run_all(folds=FOLDS[:1], bags=labelled)
    assert found.metrics[0].instance is not None
    assert found.metrics[0].instance.num_bags == 2


def test_splits_are_read_from_a_folder(done, tmp_path):
    write_splits(FOLDS, tmp_path / "splits")
    found = run_all(folds=tmp_path / "splits", only_folds=["2"])
    same_tables(found.predictions[0], done.predictions[2])
    assert [m.fold for m in found.metrics] == ["2"]


@pytest.mark.parametrize(("names", "shown"), [(["7"], "7"), (["0", "x"], "x"), ([], "none")])
def test_a_fold_that_does_not_exist_is_refused(tmp_path, names, shown):
    with pytest.raises(SplitError, match=f"folds among 0, 1, 2, but got {shown}"):
        run_all(tmp_path / "run", only_folds=names)
    assert not (tmp_path / "run").exists()


def test_folds_may_be_run_one_at_a_time(done, tmp_path):
    first = run_all(tmp_path / "run", only_folds=["1"])
    assert [m.fold for m in first.metrics] == ["1"]
    second = run_all(tmp_path / "run", only_folds=["0"], resume=True)
    assert [m.fold for m in second.metrics] == ["0", "1"]
    whole = run_all(tmp_path / "run", resume=True)
    assert list(pd.read_parquet(tmp_path / "run" / "metrics.parquet")["fold"]) == ["0", "1", "2"]
    for one, other in zip(whole.predictions, done.predictions, strict=True):
        same_tables(one, other)


def test_bags_that_cannot_be_read_leave_no_run(tmp_path):
    good = toy_bags(12)
    (tmp_path / "features").mkdir()
    for bag in good:
        features = bag.features.numpy().copy()
        if bag.slide_id == "s3":
            features[0, 0] = np.nan
        np.save(tmp_path / "features" / f"{bag.slide_id}.npy", features)
    files = read_bags(tmp_path / "features")
    bags = replace(good, source=files.source)
    with pytest.raises(BagError, match="s3"):
        run_all(tmp_path / "run", bags=bags)
    assert not (tmp_path / "run").exists()


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path):
    run_all(tmp_path / "run", only_folds=["0"])
    with run_lock(tmp_path / "run"), pytest.raises(RunFolderError, match="Another process"):
        run_all(tmp_path / "run", resume=True)
    assert len(run_all(tmp_path / "run", resume=True).metrics) == 3


# Splits that do not fit


def test_a_slide_in_two_parts_is_refused_before_anything_is_written(tmp_path):
    leaking = replace(FOLDS[0], train=(*FOLDS[0].train, "s0"))
    with pytest.raises(SplitError, match=r"each slide in one part.*s0"):
        run_all(tmp_path / "run", folds=(leaking,))
    assert not (tmp_path / "run").exists()


def test_a_patient_in_two_parts_is_refused_or_warned_of():
    bags = toy_bags(12)
    bags = replace(bags, case_ids=tuple("p" if s in ("s0", "s2") else s for s in bags.slide_ids))
    with pytest.raises(SplitError, match=r"each patient in one part.*p"):
        run_all(folds=FOLDS[:1], bags=bags)
    with pytest.warns(SharedCaseWarning, match="'train' and 'test' of fold 0"):
        found = run_all(folds=FOLDS[:1], bags=bags, on_shared_case="warn", epochs=1)
    assert found.predictions[0].slide_ids == FOLDS[0].test


def test_slides_without_bags_are_refused_or_left_out():
    split = replace(FOLDS[0], test=("s0", "gone", "s1"))
    with pytest.raises(SplitError, match="gone"):
        run_all(folds=(split,))
    with pytest.warns(MissingSlideWarning, match="gone"):
        found = run_all(folds=(split,), allow_missing=True, epochs=1)
    assert found.predictions[0].slide_ids == ("s0", "s1")


def test_the_models_own_training_is_the_default_fold_by_fold(tmp_path, own_training, judge):
    judge([1.0, 2.0, 3.0, 4.0, 5.0])
    own_training(epochs=5, patience=1, select="best", validation="optional")
    cross_validate(
        toy_bags(12),
        FOLDS,
        model_settings=TINY["sgpmil"],
        run=tmp_path / "run",
        progress=False,
    )
    assert epochs_of(tmp_path / "run" / "fold-0") == [0, 1, 2, 3, 4]
    assert epochs_of(tmp_path / "run" / "fold-1") == [0, 1]
    assert epochs_of(tmp_path / "run" / "fold-2") == [0, 1, 2, 3, 4]
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["training"]
    assert (recorded["epochs"], recorded["patience"], recorded["validation"]) == (5, 1, "optional")


def test_the_bar_is_told_of_every_fold_that_is_trained(tmp_path, monkeypatch):
    calls = []
    for name in ("epoch", "trained", "say"):
        monkeypatch.setattr(FoldProgress, name, lambda self, *values, name=name: calls.append(name))
    run_all(tmp_path / "run", only_folds=["1"], epochs=1)
    assert calls == ["epoch", "trained", "say"]
    calls.clear()
    run_all(tmp_path / "run", folds=FOLDS, epochs=1, resume=True, only_folds=["0"])
    assert calls == ["epoch", "trained", "say", "say"]


def test_folds_without_validation_cannot_choose_the_best_epoch():
    with pytest.raises(TrainingError, match="validation slides"):
        run_all(folds=FOLDS[:1], select="best")


def test_a_fold_that_trains_on_one_class_is_refused():
    one_class = Fold("0", ("s0", "s2", "s4"), (), ("s6",))
    with pytest.raises(LabelError, match="at least two classes"):
        run_all(folds=(one_class,))


# Resume


def test_resume_skips_what_is_done_and_completes_what_is_missing(done, tmp_path, monkeypatch):
    original, fitted = cross_validation.fit, []

    def fail_in_the_second_fold(train, **options):
        fitted.append(options["folder"].name)
        if len(fitted) == 2:

            def stop(metrics):
                raise StopHere

            options["on_epoch"] = stop
        return original(train, **options)

    monkeypatch.setattr(cross_validation, "fit", fail_in_the_second_fold)
    run = tmp_path / "run"
    with pytest.raises(StopHere):
        run_all(run)
    assert fitted == ["fold-0", "fold-1"]
    assert not (run / "metrics.parquet").exists()
    for path in (run / "fold-0").rglob("*"):
        os.utime(path, (1, 1))
    found = run_all(run, resume=True)
    assert fitted == ["fold-0", "fold-1", "fold-1", "fold-2"]
    assert {path.stat().st_mtime for path in (run / "fold-0").rglob("*")} == {1.0}
    assert repr(found.metrics) == repr(done.metrics)
    for one, other in zip(found.predictions, done.predictions, strict=True):
        same_tables(one, other)
    stored = [pd.read_parquet(folder / "metrics.parquet") for folder in (run, done.folder)]
    pd.testing.assert_frame_equal(*stored)


def test_an_existing_run_is_refused_or_replaced(tmp_path):
    run_all(tmp_path, folds=FOLDS[:1])
    before = files_under(tmp_path)
    with pytest.raises(RunFolderError, match="exists already"):
        run_all(tmp_path, folds=FOLDS[:1])
    assert files_under(tmp_path) == before
    found = run_all(tmp_path, folds=FOLDS[:1], overwrite=True, seed=3)
    assert (
        Run.open(tmp_path).folds["0"].load().test.probs.tolist()
        == found.predictions[0].probs.tolist()
    )
    assert files_under(tmp_path) != before


def test_resume_names_the_setting_that_differs(done):
    with pytest.raises(RunFolderError, match=r"training\.epochs was 2 and is now 3"):
        run_all(done.folder, resume=True, epochs=3)
    with pytest.raises(RunFolderError, match="data_fingerprint"):
        run_all(done.folder, resume=True, bags=toy_bags(12, seed=5))


def test_resume_and_overwrite_together_are_refused_and_lose_nothing(done):
    before = files_under(done.folder)
    with pytest.raises(SettingsError, match="resume or overwrite"):
        run_all(done.folder, resume=True, overwrite=True)
    assert files_under(done.folder) == before


def test_resume_with_other_slides_in_folds_of_the_same_size_is_refused(done):
    swapped = (fold("0", ("s0", "s1", "s7")), *FOLDS[1:])
    assert len(swapped[0].test) == len(FOLDS[0].test)
    with pytest.raises(RunFolderError, match="splits_fingerprint"):
        run_all(done.folder, folds=swapped, resume=True)


# Memory


@pytest.mark.parametrize("error", [ValueError, OSError, AttributeError])
def test_a_system_that_does_not_tell_its_free_memory(monkeypatch, error):
    def unknown(name):
        raise error(name)

    monkeypatch.setattr(cross_validation.os, "sysconf", unknown)
    assert cross_validation._fits_in_memory(toy_bags(4))


@pytest.mark.parametrize(("pages", "fits"), [(1000, True), (0, False)])
def test_bags_are_kept_in_memory_where_they_fit(monkeypatch, pages, fits):
    values = {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": pages}
    monkeypatch.setattr(cross_validation.os, "sysconf", values.__getitem__)
    assert cross_validation._fits_in_memory(toy_bags(4)) is fits


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "mixmil", "model_settings": {"likelihood": "bernoulli"}}, "two classes"),
        ({"model": "dgrmil", "model_settings": {"normal_class": 5}}, "normal_class"),
        ({"training": {"patience": 3}}, "validation slides"),
        ({"training": {"device": "gpu"}}, "GPU"),
    ],
)
def test_what_cannot_be_trained_does_not_replace_a_run(tmp_path, values, message):
    if "device" in values.get("training", {}) and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    bags = toy_bags(12, classes=3)
    ids = bags.slide_ids
    folds = (Fold("0", ids[3:], (), ids[:3]),)
    options = {"run": tmp_path / "run", "progress": False}
    cross_validate(bags, folds, model="bag-size", training={"epochs": 1}, **options)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(SgpmilError, match=message):
        cross_validate(bags, folds, **values, overwrite=True, **options)
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert after == before


def test_some_slides_without_coordinates_are_found_before_training(tmp_path):
    features = [np.random.default_rng(i).normal(size=(4, 3)) + i % 2 for i in range(12)]
    coords = [np.array([[0, 0], [1, 0], [0, 1], [1, 1]]) for _ in range(12)]
    coords[2] = None
    labels = [i % 2 for i in range(12)]
    bags = BagDataset.from_arrays(features, labels, coords=coords)
    ids = bags.slide_ids
    folds = (Fold("0", ids[6:], (), ids[:6]),)  # the slide without is of the test part
    with pytest.raises(BagError, match=r"1 of 12 have none \(first: '.*'\).*spatial=false"):
        cross_validate(bags, folds, model="bayesmil", run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
