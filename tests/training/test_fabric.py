import importlib
import signal
import sys
from types import SimpleNamespace

import pytest

from sgpmil.errors import MissingPartError, SettingsError
from sgpmil.training import fabric
from sgpmil.training.fabric import named_logger, start_fabric, termination_interrupts

from .conftest import StopHere, epochs_of, stop_after, toy_bags, train


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


def test_tensorboard_writes_beside_the_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    train(tmp_path, epochs=2, logger="tensorboard")
    assert list((tmp_path / "tensorboard").glob("events.*"))
    assert epochs_of(tmp_path) == [0, 1]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_loggers_of_lightning_need_lightning(tmp_path, monkeypatch, name):
    without(monkeypatch, "lightning", "pytorch_lightning")
    with pytest.raises(MissingPartError, match=f"'{name}' .*pip install lightning {name}") as found:
        train(tmp_path, logger=name)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "build"),
    [("tensorboard", "TensorBoardLogger"), ("mlflow", "MLFlowLogger"), ("wandb", "WandbLogger")],
)
def test_a_logger_whose_package_is_not_installed_is_named(tmp_path, monkeypatch, name, build):
    def missing(*args, **options):
        raise ModuleNotFoundError(name)

    loggers = SimpleNamespace(**{build: missing})
    monkeypatch.setattr(fabric, "import_module", lambda _: loggers)
    with pytest.raises(MissingPartError, match=f"'{name}' .*pip install {name}"):
        named_logger(name, tmp_path)


def test_lightnings_loggers_write_into_the_run(monkeypatch, tmp_path):
    made = []

    def build(*names, **options):
        made.append((names, options))
        return Notes()

    loggers = SimpleNamespace(MLFlowLogger=build, WandbLogger=build)
    monkeypatch.setattr(fabric, "import_module", lambda _: loggers)
    folder = tmp_path / "fold-0"
    assert named_logger("csv", folder) is None
    named_logger("mlflow", folder)
    named_logger("wandb", folder)
    assert made == [
        (("sgpmil",), {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}),
        ((), {"project": "sgpmil", "save_dir": str(folder), "offline": True}),
    ]


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
