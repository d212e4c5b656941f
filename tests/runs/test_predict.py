"""Predictions by the folds of a run together, and of slides that they have seen."""

import json
import shutil
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest

import sgpmil
from sgpmil.bags import read_bags
from sgpmil.bags.dataset import content_of
from sgpmil.bags.feature_origin import FeatureOriginWarning
from sgpmil.bags.splits import Fold, make_kfold
from sgpmil.errors import CheckpointError, ClusterError, PredictionError, SettingsError
from sgpmil.evaluation.ensemble import mixture
from sgpmil.evaluation.predictor import predict
from sgpmil.evaluation.seen_slides import SeenSlidesWarning
from sgpmil.models import load_model
from sgpmil.report.evaluate import EvaluateOptions, evaluate_run
from sgpmil.runs.predict import PredictOptions, predict_folder
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.results import open_results
from sgpmil.runs.seen_slides import seen_by
from sgpmil.scaleout.executors import LocalExecutor
from sgpmil.training.cross_validation import cross_validate

SMALL = {"hidden_dim": 4, "attention_dim": 3}


def write_bags(folder, count, seed=0, name="s"):
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for number in range(count):
        with h5py.File(folder / f"{name}{number:02d}.h5", "w") as file:
            size = 5 + 2 * number
            file["features"] = (rng.normal(size=(size, 4)) + number % 2).astype(np.float32)
            file["coords"] = np.zeros((size, 2), dtype=np.int64)
    labels = folder.parent / f"{folder.name}.csv"
    rows = [f"{name}{number:02d},{'no' if number % 2 else 'yes'}" for number in range(count)]
    labels.write_text("\n".join(["slide_id,label", *rows]))
    return labels


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of three folds on twelve slides, their features and labels."""
    place = tmp_path_factory.mktemp("made")
    labels = write_bags(place / "features", 12)
    bags = read_bags(place / "features", labels=labels)
    folds = make_kfold(bags.label_table(), num_folds=3, val_fraction=0.25, seed=0)
    training = {"epochs": 2, "device": "cpu"}
    cross_validate(
        bags, folds, model="abmil", model_settings=SMALL, training=training, run=place / "run"
    )
    return place, folds


def options_of(made, out, **values):
    place, _ = made
    start = {"features": place / "features", "labels": place / "features.csv", "out": out}
    return PredictOptions(**(start | values))


def test_the_folds_of_a_run_predict_together(made, tmp_path):
    place, _ = made
    labels = write_bags(tmp_path / "new", 40, seed=9, name="new")
    found = predict_folder(
        options_of(
            made, tmp_path / "p", model=place / "run", features=tmp_path / "new", labels=labels
        )
    )
    bags = read_bags(tmp_path / "new", labels=labels, classes=("no", "yes"))
    tables = [predict(load_model(place / "run" / f"fold-{k}")[0], bags) for k in range(3)]
    stored = read_predictions(tmp_path / "p")
    for row, own in enumerate(stored.predictions):
        expected = mixture([table.predictions[row] for table in tables])
        assert own.slide_id == expected.slide_id
        np.testing.assert_allclose(own.probs, expected.probs, atol=1e-6)
        np.testing.assert_allclose(own.std, expected.std, atol=1e-6)
        assert own.disagreement == pytest.approx(expected.disagreement, abs=1e-6)
        assert own.disagreement > 0
        assert own.seen == ""
    assert "3 folds" in found.notes[0]
    header = (tmp_path / "p" / "predictions.csv").read_text().splitlines()[0]
    assert list(found.to_pandas()) == header.split(",")
    assert "disagreement" in header
    assert "seen" not in header


def test_slides_that_a_fold_has_seen_are_marked_and_left_out_of_measurements(made, tmp_path):
    place, folds = made
    out = tmp_path / "p"
    found = predict_folder(options_of(made, out, model=place / "run" / "fold-0"))
    fold = folds[0]
    parts = {p.slide_id: p.seen for p in read_predictions(out).predictions}
    expected = {
        **dict.fromkeys(fold.train, "train"),
        **dict.fromkeys(fold.val, "validation"),
        **dict.fromkeys(fold.test, ""),
    }
    assert parts == expected
    counts = f"{len(fold.train)} were trained on and {len(fold.val)} were used in validation"
    assert any(counts in note for note in found.notes)
    trained = len(fold.train)
    with pytest.warns(SeenSlidesWarning, match=f"{trained} of 12 slides .* left out"):
        evaluation = evaluate_run(EvaluateOptions(predictions=out, bootstrap=0))
    assert evaluation.assessment.folds[0].slide.num_slides == 12 - trained
    with pytest.warns(SeenSlidesWarning, match="too good"):
        evaluation = evaluate_run(EvaluateOptions(predictions=out, bootstrap=0, keep_seen=True))
    assert evaluation.assessment.folds[0].slide.num_slides == 12


def test_a_copy_under_another_name_is_seen_too(made, tmp_path):
    place, folds = made
    trained, tested = folds[0].train[0], folds[0].test[0]
    (tmp_path / "copies").mkdir()
    shutil.copyfile(place / "features" / f"{trained}.h5", tmp_path / "copies" / "other.h5")
    shutil.copyfile(place / "features" / f"{tested}.h5", tmp_path / "copies" / "new.h5")
    predict_folder(
        options_of(
            made,
            tmp_path / "p",
            model=place / "run" / "fold-0",
            features=tmp_path / "copies",
            labels=None,
        )
    )
    parts = {p.slide_id: p.seen for p in read_predictions(tmp_path / "p").predictions}
    assert parts == {"other": "train", "new": ""}


def trained_slides(made, place):
    """Copy the slides that the first fold was trained on."""
    (place / "trained").mkdir()
    for slide in made[1][0].train:
        shutil.copy(made[0] / "features" / f"{slide}.h5", place / "trained")
    return place / "trained"


def test_all_slides_trained_on_cannot_be_measured(made, tmp_path):
    place, folds = made
    new = {"features": trained_slides(made, tmp_path), "labels": None}
    done = predict_folder(options_of(made, tmp_path / "p", model=place / "run" / "fold-0", **new))
    assert done.num_unseen == 0
    count = len(folds[0].train)
    with pytest.raises(PredictionError, match=rf"but {count} of {count} slides .* were trained on"):
        open_results(tmp_path / "p").load()


def test_a_run_measures_its_own_test_slides_without_a_word(made):
    place, _ = made
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate_run(EvaluateOptions(predictions=place / "run", bootstrap=0))


def test_a_checkpoint_without_a_run_has_seen_nothing_that_is_known(made, tmp_path):
    place, _ = made
    for name in ("checkpoint.safetensors", "checkpoint.json"):
        shutil.copyfile(place / "run" / "fold-0" / name, tmp_path / name)
    predict_folder(options_of(made, tmp_path / "p", model=tmp_path / "checkpoint.safetensors"))
    assert {p.seen for p in read_predictions(tmp_path / "p").predictions} == {""}


def test_a_place_without_room_replaces_no_predictions(made, tmp_path, monkeypatch):
    class NoRoom(LocalExecutor):
        def require_room(self):
            raise ClusterError("Expected a machine.")

    run = made[0] / "run"
    predict_folder(options_of(made, tmp_path / "p", model=run))
    before = {path: path.read_bytes() for path in (tmp_path / "p").rglob("*") if path.is_file()}
    monkeypatch.setattr(PredictOptions, "executor", lambda *_, **__: NoRoom())
    with pytest.raises(ClusterError):
        predict_folder(options_of(made, tmp_path / "p", model=run, overwrite=True))
    after = {path: path.read_bytes() for path in (tmp_path / "p").rglob("*") if path.is_file()}
    assert after == before


def test_an_unfinished_run_and_decisions_without_calibration_are_refused(made, tmp_path):
    place, _ = made
    shutil.copytree(place / "run", tmp_path / "run")
    with pytest.raises(SettingsError, match="`calibration`"):
        predict_folder(options_of(made, tmp_path / "p", model=tmp_path / "run", defer=0.1))
    (tmp_path / "run" / "fold-1" / "predictions.parquet").unlink()
    with pytest.raises(CheckpointError, match="1 is not"):
        predict_folder(options_of(made, tmp_path / "p", model=tmp_path / "run"))
    assert not (tmp_path / "p").exists()


def test_the_digests_of_the_slides_are_in_the_run(made):
    place, folds = made
    known = json.loads((place / "run" / "slides.json").read_text())
    assert known.keys() == {*folds[0].train, *folds[0].val, *folds[0].test}


def test_a_fold_that_is_the_current_folder_knows_its_slides(made, tmp_path, monkeypatch):
    place, folds = made
    monkeypatch.chdir(place / "run" / "fold-0")
    seen = seen_by(Path("."))
    assert set(folds[0].train) <= seen.train
    assert seen_by(Path("checkpoint.safetensors")) == seen


def test_slides_that_were_trained_on_calibrate_nothing(made, tmp_path):
    place, _ = made
    new = {"features": trained_slides(made, tmp_path), "labels": None}
    model = place / "run" / "fold-0"
    predict_folder(options_of(made, tmp_path / "cal", model=model, **new))
    with pytest.raises(PredictionError, match="calibration slides that the model has not seen"):
        predict_folder(
            options_of(made, tmp_path / "p", model=model, calibration=tmp_path / "cal", defer=0.1)
        )


@pytest.mark.filterwarnings("ignore::sgpmil.bags.splits.UnusedSlideWarning")
def test_slides_of_a_patient_who_was_trained_on_are_left_out(tmp_path):
    labels = write_bags(tmp_path / "features", 12)
    rows = labels.read_text().splitlines()
    named = [f"{row},p{number // 2}" for number, row in enumerate(rows[1:])]
    labels.write_text("\n".join([f"{rows[0]},case_id", *named]))
    bags = read_bags(tmp_path / "features", labels=labels)
    fold = Fold("0", bags.slide_ids[:8], (), bags.slide_ids[10:])
    training = {"epochs": 1, "device": "cpu"}
    options = {"model": "abmil", "model_settings": SMALL, "run": tmp_path / "run"}
    cross_validate(bags, [fold], training=training, **options)
    new = write_bags(tmp_path / "new", 4, seed=5, name="n")
    cases = ["case_id", "p0", "p1", "p8", "p9"]
    texts = zip(new.read_text().splitlines(), cases, strict=True)
    new.write_text("\n".join(f"{row},{case}" for row, case in texts))
    out = tmp_path / "p"
    model = tmp_path / "run" / "fold-0"
    predict_folder(PredictOptions(model=model, features=tmp_path / "new", labels=new, out=out))
    table = read_predictions(out)
    assert [p.seen for p in table.predictions] == ["patient", "patient", "", ""]
    with pytest.warns(SeenSlidesWarning, match="2 of 4 slides of .* are of 2 patients who were"):
        assert len(open_results(out).load()[0].test) == 2
    origin = table.provenance
    assert (origin.model, origin.folds, len(origin.train)) == ("abmil", ("0",), 8)
    assert set(origin.slides) == set(table.slide_ids)
    assert read_predictions(out / "predictions.csv").provenance == origin
    own = read_predictions(model).provenance
    assert set(own.train) == set(origin.train)
    assert own.slides == {s: content_of(bags.slide_digests()[s]) for s in fold.test}


def test_calibration_slides_are_marked_and_measure_no_decision(made, tmp_path):
    place, _ = made
    model = place / "run" / "fold-0"
    known = write_bags(tmp_path / "known", 40, seed=7, name="cal")
    new = {"model": model, "features": tmp_path / "known", "labels": known}
    predict_folder(options_of(made, tmp_path / "cal", **new))
    mixed = tmp_path / "mixed"
    labels = write_bags(mixed, 4, seed=8, name="new")
    shutil.copyfile(tmp_path / "known" / "cal00.h5", mixed / "a copy.h5")
    labels.write_text(f"{labels.read_text()}\na copy,yes")
    out = tmp_path / "p"
    found = predict_folder(
        options_of(
            made,
            out,
            model=model,
            features=mixed,
            labels=labels,
            calibration=tmp_path / "cal",
            coverage=0.9,
        )
    )
    parts = {p.slide_id: p.seen for p in read_predictions(out).predictions}
    assert parts.pop("a copy") == "calibration"
    assert (len(parts), set(parts.values())) == (4, {""})
    assert any("1 are, or share a patient with, calibration slides" in n for n in found.notes)
    assert len(read_predictions(out).provenance.calibration) == 40
    decisions = evaluate_run(EvaluateOptions(predictions=out, bootstrap=0)).decisions
    assert (decisions.num_slides, decisions.num_seen) == (4, 1)


def test_a_model_of_fit_marks_the_slides_that_it_has_seen(made, tmp_path):
    place, folds = made
    fold = folds[0]
    bags = read_bags(place / "features", labels=place / "features.csv")
    options = {
        "model": "abmil",
        "model_settings": SMALL,
        "training": {"epochs": 1, "device": "cpu"},
    }
    train, val = bags.subset(fold.train), bags.subset(fold.val)
    model = sgpmil.fit(train, val=val, folder=tmp_path / "model", **options)
    expected = {
        **dict.fromkeys(fold.train, "train"),
        **dict.fromkeys(fold.val, "validation"),
        **dict.fromkeys(fold.test, ""),
    }
    tables = {
        "fitted": sgpmil.predict(model, bags),
        "loaded": sgpmil.load(tmp_path / "model").predict(bags),
        "in memory": sgpmil.predict(model, bags.in_memory()),
    }
    for table in tables.values():
        assert {p.slide_id: p.seen for p in table.predictions} == expected
    with pytest.warns(SeenSlidesWarning, match=f"{len(fold.train)} of 12 slides"):
        measured = sgpmil.evaluate(tables["fitted"])
    assert measured.slide.num_slides == 12 - len(fold.train)
    # A copy under another name is known by its content, and another slide by its patient.
    arrays = {f"x{i}": bag.features for i, bag in enumerate(train)}
    renamed = sgpmil.bags.BagDataset.from_arrays(arrays)
    known = sgpmil.fit(train.in_memory(), **options).seen
    assert known.train >= set(fold.train)
    other = sgpmil.bags.BagDataset.from_arrays({"new": np.ones((3, 4))}, case_ids=[fold.train[0]])
    assert sgpmil.predict(model, other).predictions[0].seen == "patient"
    memory = sgpmil.fit(
        sgpmil.bags.BagDataset.from_arrays(arrays, [bag.label for bag in train]), **options
    )
    found = sgpmil.predict(memory, renamed.subset(["x1"])).predictions[0]
    assert found.seen == "train"


def test_features_of_another_magnification_are_warned_of(tmp_path):
    def at(name, magnification):
        labels = write_bags(tmp_path / name, 12, name=name)
        for path in (tmp_path / name).iterdir():
            with h5py.File(path, "r+") as file:
                file["coords"].attrs["patch_size_level0"] = 512
                file["coords"].attrs["target_magnification"] = magnification
                file["features"].attrs["encoder"] = "uni_v1"
        return read_bags(tmp_path / name, labels=labels)

    trained, other = at("a", 20), at("b", 40)
    folds = make_kfold(trained.label_table(), num_folds=2, val_fraction=0.25, seed=0)
    training = {"epochs": 1, "device": "cpu"}
    options = {"model": "abmil", "model_settings": SMALL, "training": training}
    cross_validate(trained, folds, run=tmp_path / "run", **options)
    said = "instances at 40×, where training had 20×"
    model = sgpmil.load(tmp_path / "run")
    with pytest.warns(FeatureOriginWarning, match=said):
        model.predict(other)
    with pytest.warns(FeatureOriginWarning, match=said):
        sgpmil.predict(sgpmil.fit(trained, **options), other)
    with pytest.warns(FeatureOriginWarning, match=said):
        predict_folder(
            PredictOptions(
                model=tmp_path / "run" / "fold-0", features=tmp_path / "b", out=tmp_path / "p"
            )
        )
    kept = read_predictions(tmp_path / "p").provenance
    assert kept.other_features == said
    assert kept.novelty_slides == len(folds[0].train)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FeatureOriginWarning)
        model.predict(trained)
