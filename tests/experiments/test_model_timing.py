import json

import pytest
import torch

import sgpmil.experiments.model_timing as model_timing
from sgpmil.errors import RunFolderError, TrainingError
from sgpmil.experiments.model_study import plan_timing
from sgpmil.experiments.model_timing import time_models
from sgpmil.runs.run import run_lock
from tests.experiments.tiny_data import write_classic


@pytest.fixture
def jobs(tmp_path):
    write_classic(tmp_path / "data" / "classic_mil" / "musk1.npz")
    return plan_timing(tmp_path / "data", ["musk1"], ["bag-size", "dsmil"])


@pytest.fixture
def clock(monkeypatch):
    """Let the epochs of every fit end at the times given, without training."""

    def give(*ends, fails=()):
        def fit(train, *, model, model_settings, training, on_epoch):
            assert torch.get_num_threads() == 1
            assert training.epochs == len(ends)
            assert (training.select, training.patience) == ("last", 0)
            if model in fails:
                raise TrainingError("The loss is not finite.")
            for end in ends:
                monkeypatch.setattr(model_timing.time, "perf_counter", lambda end=end: end)
                on_epoch({})

        monkeypatch.setattr(model_timing, "fit", fit)

    return give


def timed(jobs, out):
    started, done = [], []
    found = time_models(
        jobs, out, on_start=started.append, on_done=lambda key, error: done.append((key, error))
    )
    assert started == [key for key, _ in done] == [job.file.key for job in jobs]
    return found


def test_the_median_of_three_epochs_after_the_first(jobs, tmp_path, clock):
    clock(100.0, 102.0, 105.0, 114.0)
    assert [found.seconds for found in timed(jobs, tmp_path / "out")] == [3.0, 3.0]
    written = json.loads((tmp_path / "out/timing.json").read_text())["musk1"]["dsmil"]
    assert written["seconds_per_epoch"] == 3.0
    assert written["device"] in ("cpu", "cuda")
    assert written["bags"] == len(jobs[0].data_set.load()[1][0].train)


def test_a_failure_is_told_and_other_times_stay(jobs, tmp_path, clock):
    out = tmp_path / "out"
    clock(0.0, 1.0, 2.0, 3.0)
    timed(jobs, out)
    clock(0.0, 2.0, 4.0, 6.0, fails=("bag-size",))
    failed, found = timed(jobs, out)
    assert (failed.seconds, failed.error) == (None, "The loss is not finite.")
    assert found.seconds == 2.0
    written = json.loads((out / "timing.json").read_text())["musk1"]
    assert {model: w["seconds_per_epoch"] for model, w in written.items()} == {
        "bag-size": 1.0,
        "dsmil": 2.0,
    }


def test_nothing_is_timed_beside_a_running_study(jobs, tmp_path):
    with run_lock(tmp_path / "out"), pytest.raises(RunFolderError, match="Another process"):
        timed(jobs, tmp_path / "out")


def test_real_epochs_take_time(jobs, tmp_path):
    (found,) = timed(jobs[:1], tmp_path / "out")
    assert 0 < found.seconds < 60
