"""Lightning's trainer, set up for a fold: device, logger, and silence."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sgpmil.errors import MissingPartError
from sgpmil.evaluation.device import compute_device
from sgpmil.training.callbacks import AtomicCheckpointIO
from sgpmil.training.lightning_package import Logger, lightning
from sgpmil.training.settings import TrainingSettings

__all__ = ["lightning_trainer", "quiet_and_deterministic"]


@contextmanager
def lightning_trainer(
    settings: TrainingSettings, callbacks: Sequence[lightning.Callback], folder: Path | None
) -> Iterator[lightning.Trainer]:
    """Give a trainer; while it is used, torch is deterministic and Lightning quiet.

    Args:
        settings: How to train.
        callbacks: What happens at the end of an epoch.
        folder: Where a logger other than the CSV file writes.

    Raises:
        SettingsError: A GPU is asked for and there is none.
        MissingPartError: The logger's package is not installed.
    """
    with quiet_and_deterministic():
        yield lightning.Trainer(
            accelerator=compute_device(settings.device).type,
            devices=1,
            max_epochs=settings.epochs,
            callbacks=list(callbacks),
            logger=_logger(settings.logger, folder),
            plugins=[AtomicCheckpointIO()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )


@contextmanager
def quiet_and_deterministic() -> Iterator[None]:
    """Make torch deterministic and Lightning quiet while the block runs.

    Both are the whole process's: around trainers that take turns there must be such a block.
    """
    with _quiet_lightning(), _deterministic():
        yield


def _logger(name: str, folder: Path | None) -> Logger | bool:
    if folder is None or name == "csv":
        return False
    from lightning.pytorch import loggers

    try:
        if name == "tensorboard":
            return loggers.TensorBoardLogger(str(folder), name="tensorboard", version="")
        if name == "mlflow":
            return loggers.MLFlowLogger(
                "sgpmil", tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}"
            )
        return loggers.WandbLogger(project="sgpmil", save_dir=str(folder), offline=True)
    except ModuleNotFoundError as error:
        raise MissingPartError(
            f"The logger '{name}' needs a package that is not installed: pip install {name}."
        ) from error


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    # Attributes of this module are not known to type checkers.
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    # To find out who reads what nobody wrote, at the price of a pass over all memory: not needed.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warned)
        memory.fill_uninitialized_memory = filled


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Keep Lightning's advice to its own users from ours."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    levels = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        warnings.filterwarnings("ignore", message=".*val_dataloader.*")
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
