"""Exported models: what the folder holds, what it predicts, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from safetensors.torch import load_file, save_file

import sgpmil
from sgpmil.bags.splits import make_kfold
from sgpmil.errors import CheckpointError, PredictionError, RunFolderError, SettingsError
from sgpmil.models import registry
from sgpmil.report import export as exporting
from sgpmil.report.export import ExportOptions, export_model
from sgpmil.runs import Run
from sgpmil.runs.predict import PredictOptions, predict_folder
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.training.cross_validation import cross_validate
from tests.runs.test_predict import SMALL, write_bags

SMALL_SGPMIL = {"hidden_dims": (4,), "gp_dim": 2, "num_inducing": 3, "prediction_samples": 30}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of two folds on ten slides, their features and labels; an exported run and fold."""
    place = tmp_path_factory.mktemp("exported")
    labels = write_bags(place / "features", 10)
    bags = sgpmil.read_bags(place / "features", labels=labels)
    folds = make_kfold(bags.label_table(), num_folds=2, val_fraction=0.25, seed=0)
    for name, settings in (("abmil", SMALL), ("sgpmil", SMALL_SGPMIL)):
        cross_validate(
            bags,
            folds,
            model=name,
            model_settings=settings,
            training={"epochs": 1, "device": "cpu"},
            run=place / name,
        )
    export_model(ExportOptions(model=place / "abmil", to=place / "all", license="apache-2.0"))
    export_model(ExportOptions(model=place / "sgpmil" / "fold-0", to=place / "one"))
    return place


@pytest.mark.parametrize(("run", "exported"), [("abmil", "all"), ("sgpmil/fold-0", "one")])
def test_the_folder_predicts_what_the_run_predicts(place, tmp_path, run, exported):
    labels = write_bags(tmp_path / "new", 4, seed=5, name="new")
    given = {"features": tmp_path / "new", "labels": labels}
    predict_folder(PredictOptions(model=place / run, out=tmp_path / "run", **given))
    predict_folder(PredictOptions(model=place / exported, out=tmp_path / "exported", **given))
    expected, found = read_predictions(tmp_path / "run"), read_predictions(tmp_path / "exported")
    np.testing.assert_array_equal(found.probs, expected.probs)
    assert [p.std.tolist() for p in found.predictions] == [
        p.std.tolist() for p in expected.predictions
    ]
    loaded = sgpmil.load(place / exported)
    assert loaded.names == (("0", "1") if exported == "all" else ("0",))
    bags = sgpmil.read_bags(tmp_path / "new", labels=labels)
    np.testing.assert_allclose(loaded.predict(bags).probs, expected.probs, atol=1e-6)


def test_slides_of_the_training_are_known_by_content_and_not_by_name(place, tmp_path):
    (tmp_path / "copies").mkdir()
    split = Run.open(place / "sgpmil").splits["0"]
    shutil.copyfile(place / "features" / f"{split.train[0]}.h5", tmp_path / "copies" / "x.h5")
    shutil.copyfile(place / "features" / f"{split.test[0]}.h5", tmp_path / "copies" / "y.h5")
    table = sgpmil.load(place / "one").predict(sgpmil.read_bags(tmp_path / "copies"))
    assert [p.seen for p in table.predictions] == ["train", ""]


def test_no_slide_name_and_no_path_leaves_the_machine(place, tmp_path):
    names = [f"s{number:02d}" for number in range(10)]

    def found(folder):
        content = b"".join(file.read_bytes() for file in folder.iterdir())
        return [name for name in (*names, str(place)) if name.encode() in content]

    assert found(place / "all") == []
    assert found(place / "one") == []
    options = ExportOptions(
        model=place / "sgpmil" / "fold-0", to=tmp_path / "named", slide_names=True
    )
    export_model(options)
    assert found(tmp_path / "named") != []


def test_the_card_is_read_by_the_hub_s_own_library(place):
    card = ModelCard.load(place / "all" / "README.md")
    assert card.data.library_name == "sgpmil"
    assert card.data.license == "apache-2.0"
    results = {one.metric_type: one for one in card.data.eval_results}
    evaluated = sgpmil.evaluation.assess(
        sgpmil.runs.open_results(place / "abmil").load()  # each fold's own test slides
    )
    means = {metric.name: metric.mean for metric in evaluated.summary}
    assert results["auc"].metric_value == pytest.approx(means["auc"], abs=1e-4)
    assert results["ece"].metric_value == pytest.approx(means["ece"], abs=1e-4)
    front = yaml.safe_load((place / "one" / "README.md").read_text().split("---")[1])
    _, (first, *_) = model_index_to_eval_results(front["model-index"])
    low, high = first.metric_args["interval"]
    assert low <= first.metric_value <= high


def test_the_card_tells_classes_features_data_and_limits(place):
    text = (place / "all" / "README.md").read_text()
    for part in ("0 = no, 1 = yes", "N × 4", "10 of 10 patients", "no 5, yes 5", "`gated`"):
        assert part in text
    sizes = [bag.num_instances for bag in sgpmil.read_bags(place / "features")]
    patches = f"{min(sizes)} to {max(sizes)}, median {round(np.median(sizes))} "
    assert patches in text
    assert "All folds together, as exported, are not measured" in text
    assert "inducing patches" in (place / "one" / "README.md").read_text()


def test_a_checkpoint_without_a_run_says_so(place, tmp_path):
    file = place / "abmil" / "fold-0" / "checkpoint.safetensors"
    for part in (file, file.with_suffix(".json")):
        shutil.copy(part, tmp_path / part.name)
    exported = export_model(
        ExportOptions(model=tmp_path / file.name, to=tmp_path / "out", encoder="uni_v2")
    )
    text = (tmp_path / "out" / "README.md").read_text()
    assert "without measurements" in text
    assert "`uni_v2`" in text
    assert sgpmil.load(tmp_path / "out").encoders == exported.model.encoders == ("uni_v2",)


def test_an_existing_folder_is_kept(place, tmp_path):
    options = ExportOptions(model=place / "abmil", to=place / "all")
    with pytest.raises(RunFolderError, match="holds an exported model already"):
        export_model(options)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(RunFolderError, match="holds other files"):
        export_model(ExportOptions(model=place / "abmil", to=tmp_path / "mine", overwrite=True))
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "dear"


def test_a_stop_in_the_middle_leaves_the_folder_as_it_was(place, tmp_path, monkeypatch):
    def stop(content):
        raise KeyboardInterrupt

    options = {"model": place / "abmil" / "fold-0", "to": tmp_path / "a"}
    export_model(ExportOptions(**options))
    before = (tmp_path / "a" / "config.json").read_text()
    monkeypatch.setattr(exporting, "model_card", stop)
    for to in ("a", "b"):
        with pytest.raises(KeyboardInterrupt):
            export_model(ExportOptions(**options | {"to": tmp_path / to, "overwrite": True}))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a" / "config.json").read_text() == before


def test_unfinished_folds_and_exported_models_are_refused(place, tmp_path):
    shutil.copytree(place / "abmil", tmp_path / "run")
    (tmp_path / "run" / "fold-1" / "predictions.parquet").unlink()
    with pytest.raises(CheckpointError, match="but 1 is not"):
        export_model(ExportOptions(model=tmp_path / "run", to=tmp_path / "out"))
    with pytest.raises(CheckpointError, match="exported model already"):
        export_model(ExportOptions(model=place / "all", to=tmp_path / "out"))
    with pytest.raises(CheckpointError, match="there is nothing"):
        export_model(ExportOptions(model=tmp_path / "none", to=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def copied(place, tmp_path):
    return shutil.copytree(place / "all", tmp_path / "copied")


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_damaged_folders_are_refused(copied):
    weights = copied / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    with pytest.raises(CheckpointError, match=r"weights of a abmil in .*model.safetensors"):
        sgpmil.load(copied)
    weights.write_bytes(whole)
    state = load_file(weights)
    del state["1.classifier.bias"]
    save_file(state, weights)
    with pytest.raises(CheckpointError, match=r"classifier\.bias"):
        sgpmil.load(copied)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors"):
        sgpmil.load(copied)
    change(copied, folds=[{"name": "0"}])
    with pytest.raises(CheckpointError, match=r"description of an exported model.*Export"):
        sgpmil.load(copied)


def test_newer_formats_and_unknown_models_are_refused(copied):
    folds = json.loads((copied / "config.json").read_text())["folds"]
    change(copied, folds=[{**fold, "model": "someone-s-model"} for fold in folds])
    with pytest.raises(CheckpointError, match=r"of 'someone-s-model'.*install the plug-in"):
        sgpmil.load(copied)
    abmil = registry.find_model("abmil").build
    assert len(sgpmil.load(copied, model=abmil)) == 2
    change(copied, format_version=99)
    with pytest.raises(CheckpointError, match=r"of format 99\. Update sgpmil"):
        sgpmil.load(copied)


def test_other_features_and_decisions_without_calibration_are_refused(place, tmp_path):
    (tmp_path / "other").mkdir()
    np.save(tmp_path / "other" / "a.npy", np.zeros((3, 7), dtype=np.float32))
    given = {"model": place / "all", "out": tmp_path / "p"}
    with pytest.raises(PredictionError, match=r"of 4 features.*have 7"):
        predict_folder(PredictOptions(features=tmp_path / "other", **given))
    with pytest.raises(SettingsError, match="`calibration`"):
        predict_folder(PredictOptions(features=place / "features", coverage=0.9, **given))
