"""How a model is trained."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from sgpmil.errors import SettingsError

__all__ = ["TrainingSettings"]

Monitor = Literal["loss", "balanced_accuracy", "auc"]
Select = Literal["last", "best"]
Precision = Literal["32", "64", "bf16", "16"]
LoggerName = Literal["csv", "tensorboard", "mlflow", "wandb"]


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained.

    Args:
        epochs: Number of epochs.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay, of every parameter.
        warmup_epochs: Epochs over which the learning rate rises linearly.
        warmup_learning_rate: Learning rate of the first epoch, where there is a warm-up.
        min_learning_rate: Where the cosine ends.
        bags_per_step: Bags packed into one optimiser step.
        gradient_clip: Largest norm of the gradient; 0 leaves it alone.
        balanced_sampling: Whether an epoch draws bags with replacement, each class equally often,
            rather than each bag once.
        monitor: What validation judges a model by.
        select: Which epoch's model is kept for prediction.
        patience: Stop after this many epochs without a better `monitor`; 0 never stops.
        precision: Arithmetic of the dense layers; the Gaussian process stays at 32 bits or more.
        seed: Seed of everything that is drawn.
        device: ``auto``, ``cpu`` or ``gpu``.
        logger: Where curves go besides ``metrics.csv``.
    """

    epochs: int = 30
    learning_rate: float = 4e-4
    weight_decay: float = 1e-5
    warmup_epochs: int = 6
    warmup_learning_rate: float = 1e-5
    min_learning_rate: float = 1e-7
    bags_per_step: int = 2
    gradient_clip: float = 1.0
    balanced_sampling: bool = True
    monitor: Monitor = "loss"
    select: Select = "last"
    patience: int = 0
    precision: Precision = "32"
    seed: int = 0
    device: Literal["auto", "cpu", "gpu"] = "auto"
    logger: LoggerName = "csv"

    def __post_init__(self) -> None:
        for name in ("epochs", "bags_per_step"):
            if not getattr(self, name) >= 1:
                raise SettingsError(f"Expected {name} >= 1, but got {getattr(self, name)}.")
        for name in (
            "learning_rate",
            "weight_decay",
            "warmup_epochs",
            "warmup_learning_rate",
            "min_learning_rate",
            "gradient_clip",
            "patience",
            "seed",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingsError(
                    f"Expected {name} to be finite and >= 0, but got {getattr(self, name)}."
                )
        choices = {
            "monitor": Monitor,
            "select": Select,
            "precision": Precision,
            "logger": LoggerName,
        }
        for name, choice in choices.items():
            if getattr(self, name) not in get_args(choice):
                raise SettingsError(
                    f"Expected {name} to be one of {', '.join(get_args(choice))}, "
                    f"but got {getattr(self, name)!r}."
                )
        if self.device not in ("auto", "cpu", "gpu"):
            raise SettingsError(f"Expected device to be auto, cpu or gpu, but got '{self.device}'.")
