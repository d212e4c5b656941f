import json
from dataclasses import replace

import numpy as np
import pytest

from sgpmil.bags.splits import Fold
from sgpmil.errors import RunFolderError, SplitError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.runs import prediction_folder
from sgpmil.runs.run_folder import open_run, read_run
from tests.training.conftest import files_under

FOLDS = (Fold("0", ("a", "b"), (), ("c",)), Fold("1", ("a", "c"), ("d",), ("b",)))
SETTINGS = {
    "model": "sgpmil",
    "training": {"epochs": 3, "seed": 5},
    "model_settings": {"hidden_dims": (8, 4)},
    "data_fingerprint": "abc",
}


def table(num=2, scores=True):
    rng = np.random.default_rng(0)
    predictions = [
        Prediction.from_samples(
            f"slide{i}",
            f"case{i}",
            i % 2,
            rng.dirichlet([1, 1], size=3),
            InstanceScores(
                rng.random(4).astype(np.float32),
                rng.random(4).astype(np.float32),
                coords=rng.integers(0, 9, (4, 2)),
                patch_size=256,
            )
            if scores
            else None,
        )
        for i in range(num)
    ]
    return PredictionTable(tuple(predictions), ("no", "yes"))


def test_a_new_run_says_what_made_it(tmp_path):
    run = open_run(tmp_path / "deep" / "run", FOLDS, SETTINGS)
    assert run.folds == ("0", "1")
    content = json.loads((run.path / "run.json").read_text())
    assert content["settings"]["training"]["seed"] == 5
    assert content["settings"]["data_fingerprint"] == "abc"
    assert content["settings"]["model_settings"] == {"hidden_dims": [8, 4]}
    assert content["versions"].keys() >= {"sgpmil", "torch", "gpytorch", "lightning", "numpy"}
    import torch

    assert content["versions"]["torch"] == torch.__version__.split("+")[0] or (
        content["versions"]["torch"] == torch.__version__
    )
    assert content["folds"] == ["0", "1"]
    assert content["git_commit"] is None or len(content["git_commit"]) == 40
    text = (run.path / "splits" / "splits_1.csv").read_text()
    assert text.splitlines() == ["train,val,test", "a,d,b", "c,,"]


def test_an_empty_folder_is_a_new_one(tmp_path):
    assert open_run(tmp_path, FOLDS, SETTINGS).path == tmp_path
    assert (tmp_path / "run.json").exists()


def test_an_existing_run_is_refused_and_left_alone(tmp_path):
    open_run(tmp_path, FOLDS, SETTINGS)
    before = files_under(tmp_path)
    with pytest.raises(RunFolderError, match=r"exists already.*--resume.*--overwrite"):
        open_run(tmp_path, FOLDS, SETTINGS)
    assert files_under(tmp_path) == before


def test_resume_with_the_same_settings_changes_nothing(tmp_path):
    open_run(tmp_path, FOLDS, SETTINGS).write("0", table())
    before = files_under(tmp_path)
    run = open_run(tmp_path, FOLDS, SETTINGS, resume=True)
    assert files_under(tmp_path) == before
    assert run.is_done("0")
    assert not run.is_done("1")


def test_resume_of_nothing_is_a_new_run(tmp_path):
    run = open_run(tmp_path / "run", FOLDS, SETTINGS, resume=True)
    assert read_run(run.path) == run


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
    open_run(tmp_path, FOLDS, SETTINGS)
    before = files_under(tmp_path)
    with pytest.raises(RunFolderError, match=named):
        open_run(tmp_path, FOLDS, changed, resume=True)
    assert files_under(tmp_path) == before


def test_overwrite_replaces_all_of_a_run(tmp_path):
    open_run(tmp_path, FOLDS, SETTINGS).write("0", table())
    run = open_run(tmp_path, FOLDS[:1], SETTINGS | {"model": "agp"}, overwrite=True)
    assert not run.is_done("0")
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
        open_run(tmp_path, FOLDS, SETTINGS, **how)
    assert {k: v.decode() for k, v in files_under(tmp_path).items()} == files


def test_a_damaged_description_can_be_overwritten_but_not_resumed(tmp_path):
    open_run(tmp_path, FOLDS, SETTINGS)
    (tmp_path / "run.json").write_text('{"folds": [')
    with pytest.raises(RunFolderError, match=r"run\.json is damaged.*--overwrite"):
        open_run(tmp_path, FOLDS, SETTINGS, resume=True)
    open_run(tmp_path, FOLDS, SETTINGS, overwrite=True)
    assert read_run(tmp_path).folds == ("0", "1")


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_place_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(RunFolderError, match="Could not write the run folder"):
        open_run(tmp_path / place, FOLDS, SETTINGS, overwrite=True)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_full_disk(tmp_path, monkeypatch):
    run = open_run(tmp_path, FOLDS, SETTINGS)

    def full(path, scores):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prediction_folder, "write_instance_scores", full)
    with pytest.raises(RunFolderError, match=r"Could not write to .*fold-0.*No space left"):
        run.write("0", table())
    # The table is written last: the fold is not taken as done.
    assert not run.is_done("0")


def test_predictions_come_back_as_they_were(tmp_path):
    run = open_run(tmp_path, FOLDS, SETTINGS)
    written = table()
    mixed = PredictionTable(
        (written.predictions[0], replace(written.predictions[1], instances=None)),
        written.class_names,
    )
    run.write("1", mixed)
    found = run.read("1")
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
    assert run.metrics == tmp_path / "metrics.parquet"


@pytest.mark.parametrize("content", [None, "", "no JSON", "[]", "3", '{"settings": {}}'])
def test_reading_something_that_is_no_run(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"Expected a run \(a folder with run\.json\)"):
        read_run(tmp_path)


def test_reading_a_file_or_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("file", "nothing"):
        with pytest.raises(RunFolderError, match=name):
            read_run(str(tmp_path / name))


def test_validation_predictions_lie_beside_those_of_the_test(tmp_path):
    run = open_run(tmp_path, FOLDS, SETTINGS)
    run.write("1", table(3), table(2))
    found = run.read_validation("1")
    assert found.slide_ids == ("slide0", "slide1")
    assert found.probs.tolist() == table(2).probs.tolist()
    assert found.predictions[1].instances.patch_size == 256
    assert len(run.read("1")) == 3
    run.write("0", table())
    assert run.read_validation("0") is None


def test_a_fold_whose_validation_alone_is_written_is_not_done(tmp_path, monkeypatch):
    run = open_run(tmp_path, FOLDS, SETTINGS)
    written = prediction_folder.write_predictions

    def stop(path, predictions):
        if path.parent.name != "validation":
            raise OSError(28, "No space left on device")
        written(path, predictions)

    monkeypatch.setattr(prediction_folder, "write_predictions", stop)
    with pytest.raises(RunFolderError, match="No space left"):
        run.write("0", table(), table())
    assert run.read_validation("0") is not None
    assert not run.is_done("0")


def test_the_folds_of_a_run_keep_their_names_and_slides(tmp_path):
    folds = (replace(FOLDS[0], name="west"), replace(FOLDS[1], name="east"))
    assert open_run(tmp_path, folds, SETTINGS).read_folds() == folds
    (tmp_path / "splits" / "splits_1.csv").unlink()
    with pytest.raises(SplitError, match=r"splits of 2 folds .* got 1"):
        read_run(tmp_path).read_folds()
