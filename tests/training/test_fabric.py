import csv
import importlib
import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sgpmil.errors import SettingsError
from sgpmil.runs.run import Run
from sgpmil.training import fabric
from sgpmil.training.fabric import launch, start_fabric, termination_interrupts

from .conftest import StopHere, epochs_of, file_weights, stop_after, toy_bags, train


def without(monkeypatch, *names):
    """Make packages impossible to import."""
    original = importlib.import_module

    def find(name):
        if name.split(".")[0] in names:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return original(name)

    monkeypatch.setattr(fabric, "import_module", find)


def test_one_device_is_this_process():
    found = start_fabric("cpu")
    assert (found.device.type, found.world_size, found.is_global_zero) == ("cpu", 1, True)
    assert found.launch(lambda fabric: fabric.global_rank) == 0


def test_what_fabric_refuses_is_a_settings_error():
    with pytest.raises(SettingsError, match=r"accepts, but got 1, 1 and 'no-such'") as found:
        start_fabric("cpu", strategy="no-such")
    assert "\n" not in str(found.value)


def test_fabric_is_found_inside_lightning(monkeypatch):
    without(monkeypatch, "lightning_fabric")
    inside = SimpleNamespace(Fabric=lambda **options: options)
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace(fabric=inside))
    monkeypatch.setitem(sys.modules, "lightning.fabric", inside)
    assert start_fabric("cpu")["devices"] == 1


def test_more_devices_than_bags_a_step_are_refused(monkeypatch):
    several = SimpleNamespace(world_size=3, launch=lambda work: work(several))
    monkeypatch.setattr("sgpmil.training.fit.start_fabric", lambda *_, **__: several)
    with pytest.raises(SettingsError, match="as many bags a step as devices, but got 2 for 3"):
        train(bags_per_step=2)


def test_several_machines_need_the_address_of_the_first(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(SettingsError, match=r"first of 2 machines .* MASTER_ADDR"):
        start_fabric("cpu", num_nodes=2)


def test_who_waits_for_other_machines_can_be_stopped():
    def launched(work):
        heard.append((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)))
        return work(fabric)

    def work(_):
        heard.append((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)))
        return "done"

    heard, fabric = [], SimpleNamespace(launch=launched)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert launch(fabric, work, num_nodes=2) == "done"
    assert heard[0] == (signal.SIG_DFL, signal.SIG_DFL)
    assert heard[1][0] is before[0]
    assert callable(heard[1][1])  # a request to terminate is Ctrl-C again
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# Loggers


class Notes:
    """A logger as Lightning's are: anything with these two methods."""

    def __init__(self):
        self.metrics, self.status = [], []

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))

    def finalize(self, status):
        self.status.append(status)


def test_a_logger_gets_the_metrics_of_every_epoch(tmp_path):
    notes, seen = Notes(), []
    train(tmp_path, val=toy_bags(4, seed=1), loggers=[notes], on_epoch=seen.append)
    assert notes.metrics == [(epoch, metrics) for epoch, metrics in enumerate(seen)]
    assert notes.status == ["success"]


def test_a_logger_is_told_of_a_failure():
    notes = Notes()
    with pytest.raises(StopHere):
        train(loggers=[notes], on_epoch=stop_after(1))
    assert len(notes.metrics) == 2
    assert notes.status == ["failed"]


# Signals


def test_a_request_to_terminate_is_ctrl_c_and_calls_the_handler_before(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with pytest.raises(KeyboardInterrupt), termination_interrupts():
            signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, on_epoch=lambda _: signal.raise_signal(signal.SIGTERM))
        assert epochs_of(tmp_path) == [0]
        signal.raise_signal(signal.SIGTERM)
        assert len(heard) == 3
    finally:
        signal.signal(signal.SIGTERM, before)


# Several processes

SCRIPT = """
import json
import sys

import numpy as np

import sgpmil
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.splits import Fold
from sgpmil.training.settings import TrainingSettings

devices, folder, models = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
rng = np.random.default_rng(0)
names = [f"s{i}" for i in range(9)]
# From one instance to three hundred.
sizes = [1, 300, 2, 40, 3, 150, 5, 90, 8]
arrays = [rng.normal(size=(n, 4)) + 3 * (i % 2) for i, n in enumerate(sizes)]
bags = BagDataset.from_arrays(arrays, [i % 2 for i in range(9)], slide_ids=names)
for model, settings in models.items():
    options = {
        "model": model,
        "model_settings": settings,
        # Nine bags, four a step: in the last step of an epoch one process has no bag.
        "training": TrainingSettings(
            epochs=3, learning_rate=1e-2, bags_per_step=4, precision="64", device="cpu",
            select="best",
        ),
        "devices": devices,
    }
    sgpmil.fit(bags, val=bags, folder=f"{folder}/{model}", **options)
folds = [Fold("0", names[:5], names[5:7], names[7:]), Fold("1", names[4:], names[2:4], names[:2])]
folds = [Fold(f.name, tuple(f.train), tuple(f.val), tuple(f.test)) for f in folds]
sgpmil.cross_validate(bags, folds, run=f"{folder}/run", progress=False, **options)
"""

SMALL = {"hidden_dims": [8, 6], "gp_dim": 3, "num_inducing": 5}
MODELS = {
    # The process draws a value for each instance, and features to leave out for each step.
    "sgpmil": {**SMALL, "num_samples": 3},
    "transmil": {"hidden_dim": 8, "num_heads": 2, "num_landmarks": 4, "dropout": 0.0},
    "abmil": {"hidden_dim": 8, "attention_dim": 4, "dropout": 0.0},
}


def metrics_of(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [[float(value) for value in row.values()] for row in csv.DictReader(file)]
    return np.array(rows)


@pytest.mark.slow
def test_two_processes_train_as_one_with_all_bags_of_a_step(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for devices in (1, 2):
        command = [sys.executable, script, str(devices), tmp_path / str(devices)]
        done = subprocess.run(
            [*map(str, command), json.dumps(MODELS)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    one, two = tmp_path / "1", tmp_path / "2"
    files = [{str(p.relative_to(f)) for p in f.rglob("*") if p.is_file()} for f in (one, two)]
    assert files[0] == files[1]
    for fold in (*MODELS, "run/fold-0", "run/fold-1"):
        found, expected = metrics_of(two / fold), metrics_of(one / fold)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert expected[0, 2] != expected[-1, 2]
        weights, same = (file_weights(f / fold / "checkpoint.safetensors") for f in (two, one))
        for name, value in same.items():
            # Novelty is single precision, whose sums depend on the number of threads.
            single = name.startswith("novelty.")
            close = {"rtol": 1e-5, "atol": 1e-6} if single else {"rtol": 1e-8, "atol": 1e-9}
            torch.testing.assert_close(weights[name], value, **close)
    probs = [Run.open(f / "run").folds["1"].load().test.probs for f in (one, two)]
    np.testing.assert_allclose(probs[0], probs[1], rtol=1e-9)
