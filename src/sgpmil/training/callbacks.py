"""Callbacks: a user's own code at the start, after each epoch and at the end of a training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sgpmil.models.contract import MILModel
from sgpmil.training.settings import TrainingSettings


@dataclass
class FitProgress:
    """State of a training, as callbacks see it.

    Args:
        model: The model. Callbacks may read it, and must leave it as it is.
        settings: Its training settings.
        epoch: Number of the last epoch that ended, counted from 0; -1 before the first.
        metrics: Metrics of that epoch, as in ``metrics.csv``.
        best_epoch: The best epoch by the monitored metric; -1 without validation bags.
        folder: Folder of the fold; None where nothing is written.
        is_stopped: Whether a callback ended the training.
    """

    model: MILModel
    settings: TrainingSettings
    epoch: int = -1
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    best_epoch: int = -1
    folder: Path | None = None
    is_stopped: bool = False

    def stop(self) -> None:
        """End the training after this epoch; a resume does not continue it."""
        self.is_stopped = True


class Callback:
    """Base of callbacks: inherit from it and write the methods you need.

    Where several processes train together, only the first calls callbacks. An error that a callback
    raises ends the training; the epoch that ended is kept and can be resumed from.

    Example:
        >>> class StopAtLoss(Callback):
        ...     def on_epoch_end(self, progress):
        ...         if progress.metrics["train_loss"] < 0.1:
        ...             progress.stop()
    """

    def on_fit_start(self, progress: FitProgress) -> None:
        """Run before the first epoch, and before the next one of a resumed training."""

    def on_epoch_end(self, progress: FitProgress) -> None:
        """Run after each epoch, when its checkpoint is written."""

    def on_fit_end(self, progress: FitProgress) -> None:
        """Run after the last epoch, before the model is saved for prediction."""
