import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError, RunFolderError, SplitError
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.runs import prediction_folder
from sgpmil.runs.description import FORMAT, is_run
from sgpmil.runs.run import Run, run_lock
from tests.training.conftest import files_under

FOLDS = (
    Fold("0", ("a", "b"), (), ("slide0", "slide1")),
    Fold("1", ("a", "c"), ("d",), ("slide0", "slide1")),
)
SETTINGS = {
    "model": "sgpmil",
    "training": {"epochs": 3, "seed": 5},
    "model_settings": {"hidden_dims": (8, 4)},
    "data_fingerprint": "abc",
}


def table(*names):
    rng = np.random.default_rng(0)
    predictions = [
        Prediction.from_samples(
            name,
            f"case of {name}",
            i % 2,
            rng.dirichlet([1, 1], size=3),
            InstanceScores(
                rng.random(4).astype(np.float32),
                rng.random(4).astype(np.float32),
                coords=rng.integers(0, 9, (4, 2)),
                patch_size=256,
            ),
        )
        for i, name in enumerate(names or FOLDS[0].test)
    ]
    return PredictionTable(tuple(predictions), ClassTarget(("no", "yes")))


def test_a_new_run_says_what_made_it(tmp_path):
    run = Run.create(tmp_path / "deep" / "run", FOLDS, SETTINGS)
    assert list(run.folds) == ["0", "1"]
    content = json.loads((run.path / "run.json").read_text())
    assert content["settings"]["training"]["seed"] == 5
    assert content["settings"]["data_fingerprint"] == "abc"
    assert content["settings"]["model_settings"] == {"hidden_dims": [8, 4]}
    assert content["versions"].keys() >= {
        "sgpmil",
        "torch",
        "gpytorch",
        "lightning-fabric",
        "numpy",
    }
    import torch

    assert content["versions"]["torch"] == torch.__version__.split("+")[0] or (
        content["versions"]["torch"] == torch.__version__
    )
    assert content["folds"] == ["0", "1"]
    assert content["git_commit"] is None or len(content["git_commit"]) == 40
    text = (run.path / "splits" / "splits_1.csv").read_text()
    assert text.splitlines() == ["train,val,test", "a,d,slide0", "c,,slide1"]


def test_an_empty_folder_is_a_new_one(tmp_path):
    assert Run.create(tmp_path, FOLDS, SETTINGS).path == tmp_path
    assert (tmp_path / "run.json").exists()


def test_an_existing_run_is_refused_and_left_alone(tmp_path):
    Run.create(tmp_path, FOLDS, SETTINGS)
    before = files_under(tmp_path)
    with pytest.raises(RunFolderError, match=r"exists already.*`resume=True`.*`overwrite=True`"):
        Run.create(tmp_path, FOLDS, SETTINGS)
    assert files_under(tmp_path) == before


def test_resume_with_the_same_settings_changes_nothing(tmp_path):
    Run.create(tmp_path, FOLDS, SETTINGS).folds["0"].write(table())
    before = files_under(tmp_path)
    run = Run.create(tmp_path, FOLDS, SETTINGS, resume=True)
    assert files_under(tmp_path) == before
    assert run.folds["0"].is_done
    assert not run.folds["1"].is_done


def test_resume_of_nothing_is_a_new_run(tmp_path):
    run = Run.create(tmp_path / "run", FOLDS, SETTINGS, resume=True)
    assert Run.open(run.path).description == run.description


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (SETTINGS | {"training": {"epochs": 4, "seed": 5}}, r"training\.epochs was 3 and is now 4"),
        (SETTINGS | {"model": "agp"}, r"model was 'sgpmil' and is now 'agp'"),
        (SETTINGS | {"new": 1}, r"new was None and is now 1"),
        (SETTINGS | {"training": {"epochs": 4, "seed": 6}}, r"training\.epochs .*1 more differ"),
        (
            SETTINGS | {"model_settings": {"hidden_dims": (8, 5)}},
            r"model_settings\.hidden_dims was \[8, 4\] and is now \[8, 5\]",
        ),
    ],
)
def test_resume_with_another_setting_names_it(tmp_path, changed, named):
    Run.create(tmp_path, FOLDS, SETTINGS)
    before = files_under(tmp_path)
    with pytest.raises(RunFolderError, match=named):
        Run.create(tmp_path, FOLDS, changed, resume=True)
    assert files_under(tmp_path) == before


@pytest.mark.parametrize(("balanced", "same"), [(True, "balanced"), (False, "training")])
def test_a_run_from_before_the_prevalence_resumes_with_what_it_did(tmp_path, balanced, same):
    old = {"training": {"epochs": 3, "balanced_sampling": balanced}}
    new = {name: dict(old["training"], prevalence=name) for name in ("balanced", "training")}
    Run.create(tmp_path, FOLDS, old)
    other = new.keys() - {same}
    Run.create(tmp_path, FOLDS, {"training": new[same]}, resume=True)
    with pytest.raises(
        RunFolderError, match=rf"prevalence was '{same}' and is now '{other.pop()}'"
    ):
        Run.create(tmp_path, FOLDS, {"training": new[(new.keys() - {same}).pop()]}, resume=True)


def test_overwrite_replaces_all_of_a_run(tmp_path):
    Run.create(tmp_path, FOLDS, SETTINGS).folds["0"].write(table())
    run = Run.create(tmp_path, FOLDS[:1], SETTINGS | {"model": "agp"}, overwrite=True)
    assert not run.folds["0"].is_done
    assert set(files_under(tmp_path)) == {"run.json", "splits/splits_0.csv"}
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["model"] == "agp"


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    "files",
    [
        {"thesis.txt": "years of work"},
        # A file of that name may be someone else's.
        {"thesis.txt": "years of work", "run.json": '{"name": "of another tool"}'},
        {"thesis.txt": "years of work", "run.json": "[1, 2]"},
        {"thesis.txt": "years of work", "run.json": "no JSON at all"},
    ],
)
def test_a_folder_that_is_not_a_run_is_never_touched(tmp_path, how, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(RunFolderError, match="holds other files"):
        Run.create(tmp_path, FOLDS, SETTINGS, **how)
    assert {k: v.decode() for k, v in files_under(tmp_path).items()} == files


def test_a_damaged_description_can_be_overwritten_but_not_resumed(tmp_path):
    Run.create(tmp_path, FOLDS, SETTINGS)
    (tmp_path / "run.json").write_text('{"folds": [')
    with pytest.raises(RunFolderError, match=r"run\.json, but it is damaged.*`overwrite=True`"):
        Run.create(tmp_path, FOLDS, SETTINGS, resume=True)
    Run.create(tmp_path, FOLDS, SETTINGS, overwrite=True)
    assert list(Run.open(tmp_path).folds) == ["0", "1"]


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_place_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(RunFolderError, match="Could not write the run folder"):
        Run.create(tmp_path / place, FOLDS, SETTINGS, overwrite=True)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_full_disk(tmp_path, monkeypatch):
    run = Run.create(tmp_path, FOLDS, SETTINGS)

    def full(path, scores):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prediction_folder, "write_instance_scores", full)
    with pytest.raises(RunFolderError, match=r"Expected to write to .*fold-0.*No space left"):
        run.folds["0"].write(table())
    # The table is written last: the fold is not taken as done.
    assert not run.folds["0"].is_done


def test_predictions_come_back_as_they_were(tmp_path):
    run = Run.create(tmp_path, FOLDS, SETTINGS)
    written = table()
    mixed = PredictionTable(
        (written.predictions[0], replace(written.predictions[1], instances=None)),
        written.target,
    )
    run.folds["1"].write(mixed)
    found = run.folds["1"].load().test
    assert found.class_names == ("no", "yes")
    assert found.slide_ids == written.slide_ids
    np.testing.assert_array_equal(found.probs, written.probs)
    np.testing.assert_array_equal(found.std, written.std)
    assert [p.label for p in found.predictions] == [0, 1]
    one = found.predictions[0].instances
    np.testing.assert_array_equal(
        one.attention_mean, written.predictions[0].instances.attention_mean
    )
    np.testing.assert_array_equal(one.coords, written.predictions[0].instances.coords)
    assert one.patch_size == 256
    assert found.predictions[1].instances is None
    assert run.metrics_path == tmp_path / "metrics.parquet"


@pytest.mark.parametrize(
    "content",
    [
        *("", "no JSON", "[]", "3", '{"settings": {}}', '{"folds": 2}', '{"folds": "01"}'),
        *('{"folds": [], "settings": null}', '{"folds": [], "format": "new"}'),
    ],
)
def test_a_damaged_description_is_named(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"description of a run in .*run\.json, but it is dam"):
        Run.open(tmp_path)


def test_a_folder_without_a_description_is_no_run(tmp_path):
    with pytest.raises(RunFolderError, match=r"Expected a run \(a folder with run\.json\)"):
        Run.open(tmp_path)
    assert not is_run(tmp_path)


def test_reading_a_file_or_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("file", "nothing"):
        with pytest.raises(RunFolderError, match=name):
            Run.open(str(tmp_path / name))


def test_validation_predictions_lie_beside_those_of_the_test(tmp_path):
    run = Run.create(tmp_path, FOLDS, SETTINGS)
    fold = run.folds["1"]
    fold.write(table(), table("d"))
    found = fold.load()
    assert found.validation.slide_ids == ("d",)
    assert found.validation.probs.tolist() == table("d").probs.tolist()
    assert found.validation.predictions[0].instances.patch_size == 256
    assert len(found.test) == 2
    assert fold.load(with_validation=False).validation is None
    run.folds["0"].write(table())
    assert run.folds["0"].load().validation is None
    assert run.folds["0"].validation is None


def test_a_fold_whose_validation_alone_is_written_is_not_done(tmp_path, monkeypatch):
    fold = Run.create(tmp_path, FOLDS, SETTINGS).folds["0"]
    written = prediction_folder.write_predictions

    def stop(path, *predictions):
        if path.parent.name != "validation":
            raise OSError(28, "No space left on device")
        written(path, *predictions)

    monkeypatch.setattr(prediction_folder, "write_predictions", stop)
    with pytest.raises(RunFolderError, match="No space left"):
        fold.write(table(), table())
    assert fold.validation is not None
    assert not fold.is_done


def test_the_folds_of_a_run_keep_their_names_and_slides(tmp_path):
    folds = (replace(FOLDS[0], name="west"), replace(FOLDS[1], name="east"))
    run = Run.create(tmp_path, folds, SETTINGS)
    assert tuple(run.splits.values()) == folds
    assert run.folds["east"].split == folds[1]
    (tmp_path / "splits" / "splits_1.csv").unlink()
    with pytest.raises(SplitError, match=r"splits of 2 folds .* got 1"):
        _ = Run.open(tmp_path).splits


def test_a_fold_is_read_without_and_with_the_scores_of_its_instances(tmp_path):
    fold = Run.create(tmp_path, FOLDS, SETTINGS).folds["0"]
    with pytest.raises(PredictionError, match=r"fold 0 .* not done.*`resume=True`"):
        _ = fold.predictions
    fold.write(table())
    assert all(p.instances is None for p in fold.predictions.predictions)
    for prediction in fold.load().test.predictions:
        np.testing.assert_array_equal(
            fold.instance_scores(prediction.slide_id).attention_mean,
            prediction.instances.attention_mean,
        )
    assert fold.instance_scores("unknown") is None
    assert fold.checkpoint is None
    (fold.path / "checkpoint.json").write_text("{}")
    assert fold.load().checkpoint == fold.checkpoint == fold.path


def test_scores_that_cannot_be_read_are_an_error_unless_they_are_collected(tmp_path):
    fold = Run.create(tmp_path, FOLDS, SETTINGS).folds["0"]
    fold.write(table())
    (fold.path / "attention" / "slide0.h5").write_bytes(b"no HDF5")
    with pytest.raises(PredictionError, match=r"slide0\.h5"):
        fold.load()
    damaged = {}
    assert [p.instances is None for p in fold.load(damaged=damaged).test.predictions] == [1, 0]
    assert list(damaged) == ["slide0"]


def test_provenance_settings_and_data(tmp_path):
    run = Run.create(tmp_path, FOLDS, SETTINGS, data={"folder": tmp_path / "features"})
    found = Run.open(tmp_path)
    assert found.settings["model_settings"] == {"hidden_dims": [8, 4]}
    assert found.data == {"folder": str(tmp_path / "features")}
    assert found.model == "sgpmil"
    provenance = found.provenance
    assert provenance == run.provenance
    assert (provenance.seed, provenance.data_fingerprint, provenance.format) == (5, "abc", FORMAT)
    assert provenance.splits_fingerprint is None


def test_runs_written_before_formats_had_versions_open(tmp_path):
    """This is ``run.json`` as the releases without a version of the format wrote it."""
    fold = Run.create(tmp_path, FOLDS, SETTINGS).folds["1"]
    fold.write(table(), table("d"))
    (tmp_path / "run.json").write_text(
        """{
  "created": "2025-11-03T10:12:45+00:00",
  "python": "3.11.9",
  "versions": {"sgpmil": "0.1.0", "torch": "2.5.0"},
  "git_commit": null,
  "folds": ["0", "1"],
  "data": {"folder": "/data/features", "labels": "/data/labels.csv"},
  "settings": {"model": "sgpmil", "training": {"seed": 5}, "data_fingerprint": "abc"}
}"""
    )
    run = Run.open(tmp_path)
    assert is_run(tmp_path)
    assert run.unfinished == ("0",)
    assert run.data["labels"] == "/data/labels.csv"
    assert (run.provenance.seed, run.provenance.versions["torch"]) == (5, "2.5.0")
    assert run.folds["1"].load().validation.slide_ids == ("d",)
    resumed = Run.create(tmp_path, FOLDS, dict(run.settings), resume=True)
    assert resumed.folds["1"].is_done


def test_a_run_of_a_newer_format_is_refused(tmp_path):
    Run.create(tmp_path, FOLDS, SETTINGS)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": FORMAT + 1}))
    sentence = rf"format {FORMAT} or older .* it is of format {FORMAT + 1}\. Update sgpmil"
    with pytest.raises(RunFolderError, match=sentence):
        Run.open(tmp_path)
    with pytest.raises(RunFolderError, match=sentence):
        Run.create(tmp_path, FOLDS, SETTINGS, resume=True)


# One process at a time


def test_a_second_holder_is_refused(tmp_path):
    with (
        run_lock(tmp_path / "runs" / "a"),
        pytest.raises(RunFolderError, match=r"Another process is writing into .*a"),
        run_lock(tmp_path / "runs" / "a"),
    ):
        pass
    with run_lock(tmp_path / "runs" / "a"), Run(tmp_path / "runs" / "b", {}).lock():
        pass
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_a_killed_holder_leaves_no_lock(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from sgpmil.runs.run import run_lock
with run_lock(Path({str(tmp_path / "a")!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with run_lock(tmp_path / "a"):
        pass


def test_nowhere_to_write(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunFolderError, match="Could not write"),
        run_lock(tmp_path / "file" / "run"),
    ):
        pass
