"""How a model is trained."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sgpmil.errors import SettingsError

__all__ = ["TrainingSettings"]

Optimiser = Literal["adamw", "adam", "sgd", "lookahead-radam"]
Schedule = Literal["cosine", "step", "exponential", "constant"]
Monitor = Literal["loss", "balanced_accuracy", "auc"]
Select = Literal["last", "best"]
Validation = Literal["required", "optional"]
Precision = Literal["auto", "32", "64", "bf16", "16"]
Device = Literal["auto", "cpu", "gpu"]
LoggerName = Literal["csv", "tensorboard", "mlflow", "wandb"]

_CHOICES: dict[str, Any] = {
    "optimiser": Optimiser,
    "schedule": Schedule,
    "monitor": Monitor,
    "select": Select,
    "validation": Validation,
    "precision": Precision,
    "device": Device,
    "logger": LoggerName,
}


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained.

    The defaults are those of SGPMIL; `sgpmil.training.defaults.default_training` gives those of
    each model.

    Args:
        epochs: Number of epochs.
        optimiser: ``adamw`` (decoupled weight decay), ``adam``, ``sgd`` (with momentum) or
            ``lookahead-radam`` (decoupled weight decay).
        learning_rate: Peak learning rate.
        weight_decay: Weight decay, of every parameter; with ``lookahead-radam``, of matrices only
            (not of biases, nor of the scales of a normalisation).
        betas: Decay of the two moments, of every optimiser but ``sgd``.
        momentum: Momentum of ``sgd``.
        schedule: How the learning rate goes on after the warm-up: ``cosine``, down to
            `min_learning_rate` at the end; ``step``, times `decay` after every `decay_epochs`
            epochs; ``exponential``, times `decay` after every epoch, from the one numbered
            `decay_epochs` on; ``constant``.
        warmup_epochs: Epochs over which the learning rate rises linearly.
        warmup_learning_rate: Learning rate of the first epoch, where there is a warm-up.
        min_learning_rate: Where the cosine ends.
        decay: Factor of ``step`` and ``exponential``.
        decay_epochs: Epochs at the peak until the first `decay`, counted from the warm-up's end.
        bags_per_step: Bags packed into one pass through the model.
        accumulate_steps: Such passes of which an optimiser step takes the mean gradient.
        gradient_clip: Largest norm of the gradient; 0 leaves it alone.
        balanced_sampling: Whether an epoch draws bags with replacement, each class equally often,
            rather than each bag once.
        monitor: What validation judges a model by.
        select: Which epoch's model is kept for prediction.
        patience: Stop after this many epochs without a better `monitor`; 0 never stops.
        min_epochs: Epochs before which `patience` stops nothing.
        validation: What to do without validation slides where `select` or `patience` need them:
            ``required`` refuses, ``optional`` trains all epochs and keeps the last.
        precision: Arithmetic of the dense layers; the Gaussian process stays at 32 bits or more.
            ``auto`` is ``bf16`` on GPUs that have it, and ``32`` elsewhere.
        seed: Seed of everything that is drawn.
        device: ``auto``, ``cpu`` or ``gpu``.
        logger: Where curves go besides ``metrics.csv``.
    """

    epochs: int = 30
    optimiser: Optimiser = "adamw"
    learning_rate: float = 4e-4
    weight_decay: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    schedule: Schedule = "cosine"
    warmup_epochs: int = 6
    warmup_learning_rate: float = 1e-5
    min_learning_rate: float = 1e-7
    decay: float = 0.1
    decay_epochs: int = 60
    bags_per_step: int = 2
    accumulate_steps: int = 1
    gradient_clip: float = 1.0
    balanced_sampling: bool = True
    monitor: Monitor = "loss"
    select: Select = "last"
    patience: int = 0
    min_epochs: int = 0
    validation: Validation = "required"
    precision: Precision = "auto"
    seed: int = 0
    device: Device = "auto"
    logger: LoggerName = "csv"

    def __post_init__(self) -> None:
        for name in ("epochs", "bags_per_step", "accumulate_steps", "decay_epochs"):
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
            "min_epochs",
            "seed",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingsError(
                    f"Expected {name} to be finite and >= 0, but got {getattr(self, name)}."
                )
        if not 0 <= self.momentum < 1:
            raise SettingsError(f"Expected momentum from 0 to below 1, but got {self.momentum}.")
        if not (len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)):
            raise SettingsError(
                f"Expected betas to be two numbers from 0 to below 1, but got {self.betas}."
            )
        if not 0 < self.decay <= 1:
            raise SettingsError(f"Expected decay above 0 and up to 1, but got {self.decay}.")
        for name, choice in _CHOICES.items():
            if getattr(self, name) not in get_args(choice):
                raise SettingsError(
                    f"Expected {name} to be one of {', '.join(get_args(choice))}, "
                    f"but got {getattr(self, name)!r}."
                )
