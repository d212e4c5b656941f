"""Files that the training of a fold writes: models, metrics and the checkpoint of a resume."""

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sgpmil.bags.files import atomic_path, read_text
from sgpmil.bags.readers.torch_files import load_torch
from sgpmil.errors import CheckpointError
from sgpmil.models.checkpoint import save_model
from sgpmil.models.contract import MILModel
from sgpmil.training.turns import release_turn

_LAST = "last.ckpt"
METRICS_FILE = "metrics.csv"
_FORMAT_VERSION = 2
"""Version 1 was Lightning's own checkpoint, which had no number."""

_COLUMNS = (
    "epoch",
    "learning_rate",
    "train_loss",
    "val_loss",
    "val_balanced_accuracy",
    "val_auc",
)


def read_metrics(folder: Path) -> list[dict[str, str]]:
    """Read the whole rows of ``metrics.csv``; without those that a kill or damage cut.

    They are curves for a reader: nothing is computed from them, so a resume goes on without them.
    """
    try:
        text = read_text(folder / METRICS_FILE)
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except (OSError, ValueError, csv.Error):
        return []
    return [row for row in rows if list(row) == list(_COLUMNS) and _is_whole(row)]


def _is_whole(row: Mapping[str, str | None]) -> bool:
    try:
        numbers = [float(cell or "nan") for cell in row.values() if cell is not None]
        return len(numbers) == len(_COLUMNS) and numbers[0] == int(row["epoch"] or "") >= 0
    except (ValueError, OverflowError):
        return False


class FoldFiles:
    """The files of a fold's training.

    Args:
        folder: Folder of the fold; None writes nothing.
        seed: Seed of the run.
    """

    def __init__(self, folder: Path | None, seed: int) -> None:
        self.folder = folder
        self.seed = seed

    def save_model(self, model: MILModel, name: str) -> None:
        """Write a model: ``best``, ``last``, ``diverged``, or ``checkpoint``, which predicts."""
        if self.folder is not None:
            save_model(
                model,
                self.folder / f"{name}.safetensors",
                details={"seed": self.seed, "epoch": model.epoch},
            )

    def start_metrics(self, first_epoch: int) -> None:
        """Begin ``metrics.csv``, keeping whole rows of epochs before the first."""
        if self.folder is None:
            return
        path = self.folder / METRICS_FILE
        rows = [row for row in read_metrics(self.folder) if int(row["epoch"]) < first_epoch]
        with atomic_path(path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, _COLUMNS)
            writer.writeheader()
            writer.writerows(rows)

    def add_metrics(self, metrics: Mapping[str, int | float]) -> None:
        """Append the row of an epoch to ``metrics.csv``."""
        if self.folder is not None:
            with (self.folder / METRICS_FILE).open("a", newline="") as file:
                csv.DictWriter(file, _COLUMNS).writerow(metrics)
                file.flush()
                os.fsync(file.fileno())

    def save_last(self, state: Mapping[str, Any]) -> None:
        """Write the checkpoint that a resume starts from, whole or not at all."""
        if self.folder is not None:
            with release_turn(), atomic_path(self.folder / _LAST) as temporary:
                # In memory first: on a full disk torch would end in an error of its own.
                content = io.BytesIO()
                torch.save({"format_version": _FORMAT_VERSION, **state}, content)
                temporary.write_bytes(content.getbuffer())

    def read_last(self) -> dict[str, Any] | None:
        """Read the checkpoint that a resume starts from; None where there is none.

        Raises:
            CheckpointError: It is damaged, or of a later version.
        """
        path = self.last
        if path is None or not path.exists():
            return None
        try:
            content = load_torch(path, CheckpointError)
            content = _of_lightning(content) if "format_version" not in content else content
        except Exception as error:  # a damaged file fails in many ways
            raise self.not_resumable(error) from error
        version = content["format_version"]
        if isinstance(version, int) and version > _FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format version {version}, but this sgpmil reads up to "
                f"{_FORMAT_VERSION}. Upgrade sgpmil."
            )
        return dict(content)

    @property
    def last(self) -> Path | None:
        """Path of the checkpoint that a resume starts from."""
        return None if self.folder is None else self.folder / _LAST

    def not_resumable(self, error: Exception) -> CheckpointError:
        """Return the error of a checkpoint that cannot be loaded."""
        return CheckpointError(
            f"Expected a checkpoint of this model to resume from in {self.last}, but could not "
            f"load it ({str(error).splitlines()[0] if str(error) else type(error).__name__}). "
            "Delete that file to train the fold again from its start."
        )


def _of_lightning(content: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a checkpoint of Lightning's trainer, which earlier versions wrote."""
    kept = content["callbacks"].get("KeepCheckpoints", {})
    prefix = "model."
    return {
        "format_version": 1,
        "epoch": content["epoch"],
        "model": {name.removeprefix(prefix): v for name, v in content["state_dict"].items()},
        "optimiser": content["optimizer_states"][0],
        "gradient_scaler": content.get("gradient_scaler", {}),
        "best_score": kept["best_score"],
        "best_epoch": kept["best_epoch"],
        "is_stopped": False,
    }
