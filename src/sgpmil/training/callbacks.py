"""What happens at the end of an epoch: write, keep the best, tell the user."""

import csv
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from sgpmil.bags.files import atomic_path
from sgpmil.models.checkpoint import save_model
from sgpmil.training.lightning_module import LightningModel
from sgpmil.training.lightning_package import TorchCheckpointIO, lightning
from sgpmil.training.turns import resting

__all__ = [
    "AtomicCheckpointIO",
    "KeepBestWeights",
    "KeepCheckpoints",
    "ReportEpoch",
    "StopEarly",
    "WriteMetrics",
]

LAST = "last.ckpt"
METRICS = "metrics.csv"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint under a temporary name, then renames it."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write whole or not at all, so that a kill in mid-write leaves the last good one."""
        del storage_options
        with resting(), atomic_path(path) as temporary:
            torch.save(checkpoint, temporary)


class _BestEpoch(lightning.Callback):
    """Follows the monitored metric, and remembers it across a resume."""

    def __init__(self) -> None:
        self.best_score = -math.inf
        self.best_epoch = -1

    def improved(self, module: LightningModel) -> bool:
        """Say whether the epoch that ended is the best so far."""
        monitor = module.settings.monitor
        value = module.epoch_metrics.get(f"val_{monitor}", math.nan)
        score = -value if monitor == "loss" else value
        if not score > self.best_score:
            return False
        self.best_score, self.best_epoch = score, module.current_epoch
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs."""
        return {"best_score": self.best_score, "best_epoch": self.best_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where an interrupted run was."""
        self.best_score = state_dict["best_score"]
        self.best_epoch = state_dict["best_epoch"]


class KeepBestWeights(_BestEpoch):
    """Keeps the weights of the best epoch in memory, for a fit that writes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[str, torch.Tensor] = {}

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Copy the weights where they are the best so far."""
        module = _ours(pl_module)
        if self.improved(module):
            state = module.model.state_dict()
            self.weights = {name: value.detach().cpu().clone() for name, value in state.items()}


class KeepCheckpoints(_BestEpoch):
    """Writes the best model when there is a new one, and everything a resume needs each epoch.

    Args:
        folder: Folder of the fold.
        details: What the checkpoints' descriptions say besides the model.
    """

    def __init__(self, folder: Path, details: Mapping[str, Any]) -> None:
        super().__init__()
        self.folder = folder
        self.details = details

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Write the checkpoints of the epoch."""
        module = _ours(pl_module)
        if self.improved(module):
            save_model(
                module.model,
                self.folder / "best.safetensors",
                class_names=module.class_names,
                details={**self.details, "epoch": module.current_epoch},
            )
        trainer.save_checkpoint(self.folder / LAST)


class StopEarly(_BestEpoch):
    """Stops when validation has not improved for a number of epochs.

    Must come before `KeepCheckpoints`, whose checkpoint holds the count.

    Args:
        patience: That number.
        min_epochs: Epochs before which nothing is stopped.
    """

    def __init__(self, patience: int, min_epochs: int = 0) -> None:
        super().__init__()
        self.patience = patience
        self.min_epochs = min_epochs

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Count the epochs since the best one."""
        module = _ours(pl_module)
        if not self.improved(module):
            self._stop(trainer, module.current_epoch)

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Do not go on with a run that had stopped already."""
        if trainer.current_epoch > 0:
            self._stop(trainer, trainer.current_epoch - 1)

    def _stop(self, trainer: lightning.Trainer, last_epoch: int) -> None:
        stale = last_epoch - self.best_epoch >= self.patience
        trainer.should_stop = stale and last_epoch + 1 >= self.min_epochs


class WriteMetrics(lightning.Callback):
    """Appends a row to ``metrics.csv`` each epoch; a resume drops the rows it will write again.

    Args:
        folder: Folder of the fold.
    """

    COLUMNS = (
        "epoch",
        "learning_rate",
        "train_loss",
        "val_loss",
        "val_balanced_accuracy",
        "val_auc",
    )

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Keep the rows of the epochs that are done."""
        rows: list[dict[str, Any]] = []
        if self.path.exists():
            with self.path.open(newline="") as file:
                whole = [r for r in csv.DictReader(file) if None not in r.values()]
            rows = [r for r in whole if int(r["epoch"]) < trainer.current_epoch]
        with atomic_path(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.COLUMNS)
            writer.writeheader()
            writer.writerows(rows)

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Append the row of the epoch."""
        metrics = _complete_metrics(pl_module)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.COLUMNS).writerow(metrics)
            file.flush()
            os.fsync(file.fileno())
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.current_epoch)


class ReportEpoch(lightning.Callback):
    """Hands the metrics of each epoch to a function.

    Args:
        report: That function.
    """

    def __init__(self, report: Callable[[Mapping[str, float]], None]) -> None:
        self.report = report

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Call it."""
        self.report(_complete_metrics(pl_module))


def _complete_metrics(module: lightning.LightningModule) -> dict[str, int | float]:
    # Callbacks run before the module's own hook, which would add the mean training loss.
    ours = _ours(module)
    return {**ours.epoch_metrics, "train_loss": float(torch.stack(ours.train_loss).mean())}


def _ours(module: lightning.LightningModule) -> LightningModel:
    if not isinstance(module, LightningModel):
        raise TypeError(f"Expected a LightningModel, but got {type(module).__name__}.")
    return module
