import csv
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sgpmil.bags.dataset import BagDataset
from sgpmil.models import registry
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.training.fit import fit
from sgpmil.training.loop import TrainingLoop
from sgpmil.training.settings import TrainingSettings

TINY: dict[str, dict[str, Any]] = {
    "sgpmil": {
        "hidden_dims": (8,),
        "gp_dim": 4,
        "num_inducing": 5,
        "num_samples": 4,
        "prediction_samples": 16,
        "prediction_error": 0.0,
    },
    "abmil": {"hidden_dim": 8, "attention_dim": 4},
}


def toy_bags(
    count: int = 8, *, dim: int = 4, gap: float = 3.0, classes: int = 2, seed: int = 0
) -> BagDataset:
    """Bags of 2 to 5 instances whose classes lie `gap` apart."""
    rng = np.random.default_rng(seed)
    labels = [i % classes for i in range(count)]
    return BagDataset.from_arrays(
        [rng.normal(size=(2 + i % 4, dim)) + gap * label for i, label in enumerate(labels)],
        labels,
        slide_ids=[f"s{i}" for i in range(count)],
        class_names=[f"class{c}" for c in range(classes)],
    )


def quick(**values: Any) -> TrainingSettings:
    """Settings of which no test depends on the package's defaults."""
    start = {
        "epochs": 3,
        "learning_rate": 1e-2,
        "weight_decay": 1e-5,
        "warmup_epochs": 0,
        "bags_per_step": 2,
        "device": "cpu",
    }
    return TrainingSettings(**(start | values))


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def file_weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def files_under(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def train(
    folder=None,
    *,
    model="sgpmil",
    bags=None,
    val=None,
    resume=False,
    on_epoch=None,
    callbacks=(),
    loggers=(),
    model_settings=None,
    **values,
):
    return fit(
        toy_bags() if bags is None else bags,
        val=val,
        model=model,
        model_settings={**TINY[model], **(model_settings or {})},
        training=quick(**values),
        folder=folder,
        resume=resume,
        on_epoch=on_epoch,
        callbacks=callbacks,
        loggers=loggers,
    )


def epochs_of(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [int(row["epoch"]) for row in csv.DictReader(file)]


class StopHere(Exception):  # noqa: N818
    """What a test raises to end a run early."""


def stop_after(epoch: int, error: type[BaseException] = StopHere) -> Callable[[Any], None]:
    def report(metrics: Any) -> None:
        if metrics["epoch"] == epoch:
            raise error

    return report


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give each epoch a validation metric by hand."""

    def give(values: list[float], name: str = "loss") -> None:
        def validate(self: TrainingLoop) -> dict[str, float]:
            made_up = {"val_loss": 0.0, "val_balanced_accuracy": 0.0, "val_auc": 0.0}
            return made_up | {f"val_{name}": values[self.model.epoch]}

        monkeypatch.setattr(TrainingLoop, "validate", validate)

    return give


@pytest.fixture
def own_training(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainingSettings]:
    """Give a model other training settings as its own."""

    def give(model: str = "sgpmil", **values: Any) -> TrainingSettings:
        settings = quick(**values)
        entry = replace(registry.find_model(model), training=asdict(settings))
        monkeypatch.setitem(registry._ENTRIES, model, entry)
        return settings

    return give


@pytest.fixture
def spoil_loss(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change the loss of SGPMIL at one of its calls."""
    original = SGPMIL.loss

    def spoil(step: int, change: Callable[[SGPMIL, Any], Any]) -> None:
        calls = iter(range(10**6))

        def loss(self: SGPMIL, output: Any, labels: Any, num_bags: int) -> Any:
            found = original(self, output, labels, num_bags)
            return change(self, found) if next(calls) == step else found

        monkeypatch.setattr(SGPMIL, "loss", loss)

    return spoil
