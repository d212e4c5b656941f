"""Trackers, read back by the trackers' own libraries."""

import json
import struct
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from sgpmil.errors import MissingPartError, SettingsError
from sgpmil.training import tracking
from sgpmil.training.tracking import TrackedResults, tracked

SETTINGS = {"model": "abmil", "training.epochs": "2"}


@pytest.fixture
def run(tmp_path):
    """A run that exists."""
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def results(tmp_path):
    image = np.zeros((4, 6, 3), dtype=np.uint8)
    image[1, 2] = (255, 0, 0)
    Image.fromarray(image).save(tmp_path / "roc.png")
    (tmp_path / "predictions.csv").write_text("slide_id,p_b\ns0,0.9\n")
    return TrackedResults(
        folds={"0": {"auc": 0.75, "ece": float("nan")}, "1": {"auc": 1.0}},
        summary={"mean_auc": 0.875, "sd_auc": float("nan")},
        figures={"roc": tmp_path / "roc.png"},
        header=["fold", "slide_id", "p_b"],
        rows=[["0", "s0", "0.9"], ["1", "s1", "0.2"]],
        files=[tmp_path / "predictions.csv"],
    )


def loss(epoch, fold):
    return {
        f"fold-{fold}/epoch": epoch,
        f"fold-{fold}/train_loss": 1.0 / (epoch + 1) + fold,
        f"fold-{fold}/val_auc": float("nan"),
    }


def track(name, run, results, *, stop=False):
    """Track two folds of two epochs; or stop in the second fold, and resume."""
    if stop:
        with suppress(KeyboardInterrupt), tracked([name], run, SETTINGS) as (tracker,):
            tracker.log_metrics(loss(0, 0), step=0)
            tracker.log_metrics(loss(1, 0), step=1)
            tracker.log_metrics(loss(0, 1), step=0)
            raise KeyboardInterrupt
    with tracked([name], run, SETTINGS) as (tracker,):
        if not stop:
            tracker.log_metrics(loss(0, 0), step=0)
            tracker.log_metrics(loss(0, 1), step=0)
            tracker.log_metrics(loss(1, 0), step=1)
        tracker.log_metrics(loss(1, 1), step=1)
        tracker.log_results(results)


@pytest.mark.parametrize("stop", [False, True], ids=["whole", "resumed"])
def test_tensorboard(run, results, stop):
    pytest.importorskip("tensorboard", reason="pip install '.[tracking]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    track("tensorboard", run, results, stop=stop)
    assert {path.name for path in (run / "tensorboard").iterdir()} == {"run", "fold-0", "fold-1"}
    for fold, auc in ((0, 0.75), (1, 1.0)):
        found = EventAccumulator(str(run / "tensorboard" / f"fold-{fold}")).Reload()
        assert set(found.Tags()["scalars"]) == {"train_loss", "test_auc"}
        curve = [(event.step, event.value) for event in found.Scalars("train_loss")]
        assert curve == [(0, 1.0 + fold), (1, 0.5 + fold)]
        assert found.Scalars("test_auc")[0].value == auc
    whole = EventAccumulator(str(run / "tensorboard" / "run")).Reload()
    assert whole.Tags()["scalars"] == ["mean_auc"]
    assert whole.Scalars("mean_auc")[0].value == 0.875
    (image,) = whole.Images("roc")
    assert (image.width, image.height) == (6, 4)
    texts = {
        tag: whole.Tensors(f"{tag}/text_summary")[0].tensor_proto.string_val[0].decode()
        for tag in ("settings", "predictions")
    }
    assert "| training.epochs | 2 |" in texts["settings"]
    assert "| 1 | s1 | 0.2 |" in texts["predictions"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [False, True], ids=["whole", "resumed"])
@pytest.mark.filterwarnings("ignore")  # of mlflow's own dependencies
def test_mlflow(run, results, stop, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install '.[mlflow]'; 850 MB of packages")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    track("mlflow", run, results, stop=stop)
    client = mlflow.MlflowClient(f"sqlite:///{run.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sgpmil")
    found = {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}
    assert set(found) == {"first", "first fold-0", "first fold-1"}
    assert {one.info.status for one in found.values()} == {"FINISHED"}
    whole = found["first"]
    assert whole.data.params == SETTINGS
    assert whole.data.metrics == {"mean_auc": 0.875}
    for fold, auc in ((0, 0.75), (1, 1.0)):
        one = found[f"first fold-{fold}"]
        assert one.data.tags["mlflow.parentRunId"] == whole.info.run_id
        assert one.data.metrics == {"train_loss": 0.5 + fold, "test_auc": auc}
        curve = client.get_metric_history(one.info.run_id, "train_loss")
        assert [(point.step, point.value) for point in curve] == [(0, 1.0 + fold), (1, 0.5 + fold)]
    names = {
        file.path
        for folder in ("figures", "tables")
        for file in client.list_artifacts(whole.info.run_id, folder)
    }
    assert names == {"figures/roc.png", "tables/predictions.csv"}


def wandb_records(content):
    """Yield the records of a file of W&B: LevelDB's log format after seven bytes."""
    block, place, parts = 32768, 7, b""
    while place + 7 <= len(content):
        left = block - place % block
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.slow
@pytest.mark.parametrize("stop", [False, True], ids=["whole", "resumed"])
@pytest.mark.filterwarnings("ignore")  # of wandb's own dependencies
def test_wandb(run, results, stop, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="pip install '.[wandb]'; 125 MB of packages")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    track("wandb", run, results, stop=stop)
    wandb.teardown()  # ends its process, which may still be writing
    history, summary, config, ids = [], {}, {}, set()
    for file in sorted((run / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in wandb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                history.append(
                    {
                        item.key or "/".join(item.nested_key): json.loads(item.value_json)
                        for item in record.history.item
                    }
                )
            for item in record.summary.update:
                summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
            for item in record.run.config.update:
                config[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
            if record.HasField("run"):
                ids.add(record.run.run_id)
    assert ids == {json.loads((run / "tracking.json").read_text())["wandb"]["run"]}
    for fold in (0, 1):
        start = f"fold-{fold}"
        curve = [
            (row[f"{start}/epoch"], row[f"{start}/train_loss"])
            for row in history
            if f"{start}/train_loss" in row
        ]
        assert curve == [(0, 1.0 + fold), (1, 0.5 + fold)]
    assert (summary["fold-0/test_auc"], summary["mean_auc"]) == (0.75, 0.875)
    assert SETTINGS.items() <= config.items()
    last = history[-1]
    assert last["roc/_type"] == "image-file"
    assert (last["predictions/_type"], last["predictions/nrows"]) == ("table-file", 2)


def test_only_the_first_process_keeps_a_record(run, monkeypatch):
    pytest.importorskip("tensorboard", reason="pip install '.[tracking]'")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with tracked(["tensorboard"], run, SETTINGS) as trackers:
        assert trackers == ()


def test_a_run_that_fails_at_once_leaves_no_record(run):
    pytest.importorskip("tensorboard", reason="pip install '.[tracking]'")
    with pytest.raises(ZeroDivisionError), tracked(["tensorboard"], run, SETTINGS):
        raise ZeroDivisionError
    assert list(run.iterdir()) == []


def test_a_tracker_that_is_unknown_or_not_installed(run, monkeypatch):
    with pytest.raises(SettingsError, match="tensorboard, mlflow, wandb, but got 'paper'"):
        tracked(["paper"], run, {}).__enter__()
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    with pytest.raises(MissingPartError, match=r"'mlflow' to track .*\[mlflow\]'"):
        tracked(["mlflow"], run, {}).__enter__()
