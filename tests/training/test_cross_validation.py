import json
import os
import signal
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.reading import read_bags
from sgpmil.bags.split_files import write_splits
from sgpmil.bags.splits import Fold, MissingSlideWarning, SharedCaseWarning
from sgpmil.errors import (
    BagError,
    ClusterError,
    LabelError,
    RunFolderError,
    SettingsError,
    SgpmilError,
    SplitError,
    TrainingError,
)
from sgpmil.evaluation.predictor import predict
from sgpmil.evaluation.summary import evaluate
from sgpmil.gpu.resident import on_device
from sgpmil.models.registry import build_model
from sgpmil.progress import ProgressBar, progress_bar
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.run import Run, run_lock
from sgpmil.training import cross_validation, turns
from sgpmil.training import fold as fold_module
from sgpmil.training.callbacks import Callback
from sgpmil.training.cross_validation import cross_validate, default_folds_at_once
from sgpmil.training.engines import PlainEngine
from sgpmil.training.fit import fit
from tests.waiting import wait_until

from .conftest import (
    TINY,
    StopHere,
    epochs_of,
    file_weights,
    files_under,
    quick,
    same_weights,
    toy_bags,
)


def fold(name, test, val=()):
    train = [f"s{i}" for i in range(12) if f"s{i}" not in (*test, *val)]
    return Fold(name, tuple(train), tuple(val), tuple(test))


FOLDS = (
    fold("0", ("s0", "s1", "s5")),
    fold("1", ("s2", "s3"), val=("s6", "s7")),
    fold("2", ("s11", "s4")),
)


PARTS = ("train", "val", "test")


def run_all(run=None, folds=FOLDS, bags=None, **values):
    options = {
        name: values.pop(name)
        for name in (
            *("resume", "overwrite", "allow_missing", "only_folds", "on_shared_case"),
            *("executor", "callbacks", "devices"),
        )
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


class NoRoom:
    """A place where no job can run."""

    def require_room(self):
        raise ClusterError("Expected a machine.")

    def run(self, *_, **__):
        raise AssertionError("Nothing runs where there is no room.")


def test_what_cannot_be_trained_there_replaces_no_run(tmp_path):
    before = run_all(tmp_path / "run").folder
    content = files_under(before)
    for options, error in (
        ({"executor": NoRoom()}, ClusterError),
        ({"executor": NoRoom(), "callbacks": [Callback()]}, SettingsError),
        ({"devices": 3, "bags_per_step": 2}, SettingsError),
    ):
        with pytest.raises(error):
            run_all(before, overwrite=True, **options)
        assert files_under(before) == content
    with pytest.raises(ClusterError):
        run_all(tmp_path / "new", executor=NoRoom())
    assert not (tmp_path / "new").exists()


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
    pd.testing.assert_frame_equal(
        stored, expected.set_index("fold").astype(float).reset_index(), check_dtype=False
    )
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
        # Without the metadata, which tell the date and the folder.
        assert pq.read_table(done.folder / name).equals(pq.read_table(again.folder / name))
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


@pytest.mark.filterwarnings("ignore::sgpmil.bags.splits.UnusedSlideWarning")
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
    for name in ("advance", "say"):
        monkeypatch.setattr(ProgressBar, name, lambda self, *values, name=name: calls.append(name))
    run_all(tmp_path / "run", only_folds=["1"], epochs=1)
    assert calls == ["advance", "say"]
    calls.clear()
    run_all(tmp_path / "run", folds=FOLDS, epochs=1, resume=True, only_folds=["0"])
    assert calls == ["advance", "say", "say"]


def test_the_bar_counts_the_epochs_of_all_folds():
    with progress_bar("abmil", 10, "epochs", show=False) as bar:
        with fold_module.FoldProgress.shown(bar, "fold 0 (1 of 2)", 5) as fold:
            fold.end_epoch({"epoch": 1, "train_loss": 0.51234})  # a resumed fold
            assert bar.count == "1 of 9"
            metrics = {"val_loss": 0.25, "val_balanced_accuracy": 0.875}
            fold.end_epoch({"epoch": 2, "train_loss": 0.5, **metrics})
            assert bar.count == "2 of 9"
            (text,) = bar._states.values()
            assert text == (
                "fold 0 (1 of 2), epoch 3 of 5: loss 0.500, validation loss 0.250, "
                "balanced accuracy 0.875"
            )
            fold.test()  # early stopping
            assert bar.count == "2 of 7"
        assert not bar._states


def test_folds_without_validation_cannot_choose_the_best_epoch():
    with pytest.raises(TrainingError, match="validation slides"):
        run_all(folds=FOLDS[:1], select="best")


@pytest.mark.filterwarnings("ignore::sgpmil.bags.splits.UnusedSlideWarning")
def test_a_fold_that_trains_on_one_class_is_refused():
    one_class = Fold("0", ("s0", "s2", "s4"), (), ("s6",))
    with pytest.raises(LabelError, match="at least two classes"):
        run_all(folds=(one_class,))


# Resume


def test_resume_skips_what_is_done_and_completes_what_is_missing(done, tmp_path, monkeypatch):
    original, fitted = fold_module.fit_fold, []

    def fail_in_the_second_fold(*parts, **options):
        fitted.append(options["folder"].name)
        if len(fitted) == 2:

            def stop(metrics):
                raise StopHere

            options["on_epoch"] = stop
        return original(*parts, **options)

    monkeypatch.setattr(fold_module, "fit_fold", fail_in_the_second_fold)
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


def test_resume_names_the_slides_that_changed(done):
    bags = toy_bags(12)
    features = [bag.features.numpy() for bag in bags]
    features[3] = features[3] + 1
    names = ["s12" if name == "s11" else name for name in bags.slide_ids]
    other = BagDataset.from_arrays(
        features, bags.labels, slide_ids=names, class_names=bags.class_names
    )
    folds = tuple(
        replace(f, **{k: tuple("s12" if s == "s11" else s for s in getattr(f, k)) for k in PARTS})
        for f in FOLDS
    )
    with pytest.raises(
        RunFolderError, match=r"files 1 changed \('s3'\), 1 is new \('s12'\), 1 is gone \('s11'\)"
    ):
        run_all(done.folder, resume=True, bags=other, folds=folds)


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

    monkeypatch.setattr(fold_module.os, "sysconf", unknown)
    assert fold_module._fits_in_memory(toy_bags(4))


@pytest.mark.parametrize(("pages", "fits"), [(1000, True), (0, False)])
def test_bags_are_kept_in_memory_where_they_fit(monkeypatch, pages, fits):
    values = {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": pages}
    monkeypatch.setattr(fold_module.os, "sysconf", values.__getitem__)
    assert fold_module._fits_in_memory(toy_bags(4)) is fits


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
    with pytest.raises(BagError, match=r"1 of 12 have none \(first: '.*'\).*\"spatial\": False"):
        cross_validate(bags, folds, model="bayesmil", run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


CPU = torch.device("cpu")


def folds_of(count, bags):
    """Give each fold another few bags to test, and the next ones to validate with."""
    names = bags.slide_ids
    folds = []
    for k in range(count):
        test, val = names[2 * k : 2 * k + 2], names[2 * k + 2 : 2 * k + 4]
        train = tuple(name for name in names if name not in (*test, *val))
        folds.append(Fold(str(k), train, val, test))
    return folds


def run_at_once(run, *, bags=None, count=4, at_once, resume=False, **values):
    bags = toy_bags(14) if bags is None else bags
    return cross_validate(
        bags,
        folds_of(count, bags),
        model_settings=TINY["sgpmil"],
        training=quick(**values),
        run=run,
        resume=resume,
        folds_at_once=at_once,
        progress=False,
    )


def same_runs(one, other):
    for mine, theirs in zip(one.predictions, other.predictions, strict=True):
        assert mine.slide_ids == theirs.slide_ids
        np.testing.assert_array_equal(mine.probs, theirs.probs)
        np.testing.assert_array_equal(mine.std, theirs.std)
    for fold in Run.open(one.folder).folds:
        for name in ("best.safetensors", "last.safetensors"):
            paths = [result.folder / f"fold-{fold}" / name for result in (one, other)]
            assert same_weights(*(file_weights(path) for path in paths))
        curves = [result.folder / f"fold-{fold}" / "metrics.csv" for result in (one, other)]
        assert curves[0].read_text() == curves[1].read_text()


@pytest.mark.slow
def test_folds_at_once_are_what_they_are_one_after_another(tmp_path):
    alone = run_at_once(tmp_path / "alone", at_once=1, select="best")
    filters, handler = list(warnings.filters), signal.getsignal(signal.SIGTERM)
    together = run_at_once(tmp_path / "together", at_once=3, select="best")
    same_runs(alone, together)
    assert set(files_under(alone.folder)) == set(files_under(together.folder))
    # What belongs to the whole process is as it was.
    assert warnings.filters == filters
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
def test_who_stops_folds_at_once_can_go_on_with_all(tmp_path, monkeypatch):
    whole = run_at_once(tmp_path / "whole", at_once=1, epochs=4)
    fit = fold_module.fit_fold
    asked = []

    def interrupted(*args, **values):
        report = values["on_epoch"]

        def on_epoch(metrics):
            report(metrics)
            if metrics["epoch"] == 1 and not asked:
                asked.append(1)
                os.kill(os.getpid(), signal.SIGINT)
                queue = turns._here.worker._queue
                wait_until(lambda: queue.is_stopped)  # no fold goes on before it is heard

        return fit(*args, **(values | {"on_epoch": on_epoch}))

    monkeypatch.setattr(fold_module, "fit_fold", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_at_once(tmp_path / "stopped", at_once=3, epochs=4)
    monkeypatch.undo()
    kept = Run.open(tmp_path / "stopped")
    assert not any(kept.folds[fold].is_done for fold in kept.folds)
    assert [(kept.folds[f].path / "last.ckpt").exists() for f in kept.folds][:2] == [True, True]
    same_runs(whole, run_at_once(tmp_path / "stopped", at_once=3, resume=True, epochs=4))


@pytest.mark.slow
def test_others_have_their_turn_while_a_fold_is_tested(monkeypatch):
    calls = []
    monkeypatch.setattr(fold_module, "yield_turn", lambda: calls.append(1))
    result = run_at_once(None, at_once=2)
    assert len(calls) == sum(len(table.slide_ids) for table in result.predictions)


@pytest.mark.slow
def test_a_fold_that_fails_ends_the_others_and_loses_nothing(tmp_path, monkeypatch):
    whole = run_at_once(tmp_path / "whole", at_once=1)
    fit = fold_module.fit_fold
    calls = iter(range(100))

    def failing(*args, **values):
        if next(calls) == 2:
            raise TrainingError("The third fails.")
        return fit(*args, **values)

    monkeypatch.setattr(fold_module, "fit_fold", failing)
    with pytest.raises(TrainingError, match="The third fails"):
        run_at_once(tmp_path / "failed", at_once=2)
    monkeypatch.undo()
    same_runs(whole, run_at_once(tmp_path / "failed", at_once=2, resume=True))


@pytest.mark.parametrize("number", [0, 9])
@pytest.mark.slow
def test_too_few_or_too_many_are_refused(number):
    with pytest.raises(SettingsError, match=f"from 1 to 8, but got {number}"):
        run_at_once(None, at_once=number)


@pytest.mark.slow
def test_one_at_a_time_where_steps_are_not_recorded():
    bags = toy_bags()
    model = build_model("sgpmil", in_dim=4, num_classes=2, **TINY["sgpmil"])
    assert default_folds_at_once(model, quick(), bags, CPU) == 1
    assert default_folds_at_once(model, quick(), on_device(bags, CPU), CPU) == 1


@pytest.mark.slow
def test_memory_limits_how_many(monkeypatch):
    monkeypatch.setattr(cross_validation, "can_record", lambda *_: True)
    bags = toy_bags()
    model = build_model("sgpmil", in_dim=4, num_classes=2, **TINY["sgpmil"])
    rows = 256  # of the largest step, filled up
    # Inputs; hidden units, inputs of the process and classes; none of them is a small part.
    width = 4 + (8 + 4 + 2)
    room = rows * width * cross_validation._VALUE_BYTES
    room += model.num_parameters() * cross_validation._PARAMETER_BYTES

    def found(free):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
        return default_folds_at_once(model, quick(bags_per_step=2), bags, torch.device("cuda"))

    assert found(100 * room) == cross_validation.MOST_AT_ONCE
    assert found(3 * room) == 3
    assert found(3 * room - 1) == 2
    assert found(room - 1) == 1
    monkeypatch.setattr(cross_validation, "MOST_ROWS", 9)  # the two largest bags have ten instances
    assert found(100 * room) == 1


@pytest.mark.slow
def test_a_gpu_without_memory_is_told_of_in_a_sentence(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee ...")

    monkeypatch.setattr(PlainEngine, "epoch", full)
    with pytest.raises(TrainingError, match=r"2 GiB.*`folds_at_once=1`") as caught:
        run_at_once(None, at_once=1)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.slow
def test_on_a_gpu_folds_at_once_are_what_they_are_one_after_another(
    tmp_path, precision, recorded, monkeypatch
):
    if not recorded:
        monkeypatch.setattr("sgpmil.training.loop.recorded_steps", lambda *_: None)
    rng = np.random.default_rng(0)
    sizes = rng.integers(100, 900, 16)
    features = [rng.normal(i % 2, 1, (n, 12)).astype(np.float32) for i, n in enumerate(sizes)]
    bags = BagDataset.from_arrays(features, [i % 2 for i in range(16)])
    settings = {"bags": bags, "count": 5, "precision": precision, "device": "gpu", "epochs": 5}
    alone = run_at_once(tmp_path / "alone", at_once=1, **settings)
    same_runs(alone, run_at_once(tmp_path / "together", at_once=4, **settings))
    same_runs(alone, run_at_once(tmp_path / "again", at_once=2, **settings))
