"""Training settings, the learning rate of each epoch, and the settings of each model.

Optimiser, schedule, epochs and early stopping of a model are those of its authors, from paper and
code; they are registered beside its class. Common to all models, unless one needs otherwise, is
what the SGPMIL paper's code does for every model: one bag a step, gradients clipped at norm 1,
classes drawn equally often. Where an author stops early or keeps the best epoch and there are no
validation slides, all epochs are trained.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from sgpmil.errors import SettingsError
from sgpmil.models.prevalence import Prevalence, prevalence_text
from sgpmil.models.registry import ModelLike, checked_value, find_model, unknown_name

Optimiser = Literal["adamw", "adam", "sgd", "lookahead-radam"]
Schedule = Literal["cosine", "step", "exponential", "constant"]
Monitor = Literal["loss", "balanced_accuracy", "auc"]
Select = Literal["last", "best"]
Validation = Literal["required", "optional"]
Precision = Literal["auto", "32", "64", "bf16", "16"]

_CHOICES: dict[str, Any] = {
    "optimiser": Optimiser,
    "schedule": Schedule,
    "monitor": Monitor,
    "select": Select,
    "validation": Validation,
    "precision": Precision,
}


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of a training.

    The defaults are for models without a training of their own; `default_training` gives those of
    each model.

    Args:
        epochs: Number of epochs.
        optimiser: ``adamw`` (decoupled weight decay), ``adam``, ``sgd`` (with momentum) or
            ``lookahead-radam`` (decoupled weight decay).
        learning_rate: Peak learning rate.
        weight_decay: Weight decay, of every parameter but those of distributions (see
            `MILModel.rate_factor`); with ``lookahead-radam``, of matrices only (not of biases, nor
            of the scales of a normalisation).
        betas: Decay of the two moments, of every optimiser but ``sgd``.
        momentum: Momentum of ``sgd``.
        schedule: Learning rate after the warm-up: ``cosine``, down to
            `min_learning_rate` at the end; ``step``, times `decay` after every `decay_epochs`
            epochs; ``exponential``, times `decay` after every epoch, from the one numbered
            `decay_epochs` on; ``constant``.
        warmup_epochs: Epochs over which the learning rate rises linearly; at most three tenths of
            all.
        warmup_learning_rate: Learning rate of the first epoch, where there is a warm-up.
        min_learning_rate: Learning rate at the end of the cosine.
        decay: Factor of ``step`` and ``exponential``.
        decay_epochs: Epochs at the peak until the first `decay`, counted from the warm-up's end.
        bags_per_step: Bags packed into one pass through the model.
        accumulate_steps: Such passes of which an optimiser step takes the mean gradient.
        gradient_clip: Largest norm of the gradient; 0 leaves it alone.
        balanced_sampling: Whether an epoch draws bags with replacement, each class equally often,
            rather than each bag once.
        prevalence: Class shares that the probabilities are for: ``training``, those of the
            training slides; ``balanced``, all equal; the share of the second of two classes, such
            as 0.1; or a share for each class, such as ``tumour=0.1,normal=0.9``.
        monitor: Metric of the validation slides by which epochs are compared.
        select: Epoch whose model is kept for prediction.
        patience: Stop after this many epochs without a better `monitor`; 0 never stops.
        min_epochs: Epochs before which `patience` stops nothing.
        validation: Rule for a lack of validation slides that `select` or `patience` need:
            ``required`` refuses, ``optional`` trains all epochs and keeps the last.
        precision: Arithmetic of the dense layers; the Gaussian process stays at 32 bits or more.
            ``auto`` is ``bf16`` on GPUs that have it, and ``32`` elsewhere.
        seed: Seed of everything that is drawn, below 2^32.
        device: ``auto``, ``cpu``, ``gpu``, or one of several GPUs, such as ``cuda:1``.
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
    prevalence: Prevalence = "training"
    monitor: Monitor = "loss"
    select: Select = "last"
    patience: int = 0
    min_epochs: int = 0
    validation: Validation = "required"
    precision: Precision = "auto"
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "bags_per_step", "accumulate_steps", "decay_epochs"):
            if not getattr(self, name) >= 1:
                raise SettingsError(f"Expected {name} >= 1, but got {getattr(self, name)}.")
            if getattr(self, name) >= 2**31:
                raise SettingsError(f"Expected {name} < 2^31, but got {getattr(self, name)}.")
        for name in (
            "learning_rate",
            "weight_decay",
            "warmup_epochs",
            "warmup_learning_rate",
            "min_learning_rate",
            "gradient_clip",
            "patience",
            "min_epochs",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingsError(
                    f"Expected {name} to be finite and >= 0, but got {getattr(self, name)}."
                )
        if not 0 <= self.seed < 2**32:  # scikit-learn takes no larger one
            raise SettingsError(f"Expected seed >= 0 and below 2^32, but got {self.seed}.")
        if not 0 <= self.momentum < 1:
            raise SettingsError(f"Expected momentum from 0 to below 1, but got {self.momentum}.")
        if not (len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)):
            raise SettingsError(
                f"Expected betas to be two numbers from 0 to below 1, but got {self.betas}."
            )
        if not 0 < self.decay <= 1:
            raise SettingsError(f"Expected decay above 0 and up to 1, but got {self.decay}.")
        if not re.fullmatch(r"auto|cpu|(gpu|cuda)(:\d+)?", self.device):
            raise SettingsError(
                "Expected device to be auto, cpu, gpu or one of several GPUs, such as cuda:1, but "
                f"got {self.device!r}."
            )
        object.__setattr__(self, "prevalence", prevalence_text(self.prevalence))
        for name, choice in _CHOICES.items():
            if getattr(self, name) not in get_args(choice):
                raise SettingsError(
                    f"Expected {name} to be one of {', '.join(get_args(choice))}, "
                    f"but got {getattr(self, name)!r}."
                )


def learning_rate(settings: TrainingSettings, epoch: int) -> float:
    r"""Return the learning rate of an epoch, counted from 0.

    With peak $\eta$, warm-up start $\eta_0$ and $W \le .3\,T$ warm-up epochs of $T$: rising
    linearly from $\eta_0$ at epoch 0 to $\eta$ at epoch $W - 1$, and from epoch $W$ on, with
    $u = t - W$, floor $\eta_1$, factor $\gamma$ (`decay`) and $E$ epochs (`decay_epochs`):

    - cosine: $\eta_1 + (\eta - \eta_1)\,\tfrac12\big(1 + \cos(\pi u / (T - W))\big)$
    - step: $\eta\,\gamma^{\lfloor u / E \rfloor}$
    - exponential: $\eta\,\gamma^{\max(0,\, u - E + 1)}$
    - constant: $\eta$

    Example:
        >>> learning_rate(TrainingSettings(epochs=20, learning_rate=1.0), 6)
        1.0
    """
    peak, floor = settings.learning_rate, settings.min_learning_rate
    # A short training would else be all warm-up, and end at the peak.
    warmup = min(settings.warmup_epochs, 3 * settings.epochs // 10)
    if epoch < warmup:
        start = settings.warmup_learning_rate
        return start + (peak - start) * epoch / max(1, warmup - 1) if warmup > 1 else peak
    past = epoch - warmup
    match settings.schedule:
        case "cosine":
            progress = past / max(1, settings.epochs - warmup)
            return floor + (peak - floor) * (1 + math.cos(math.pi * progress)) / 2
        case "step":
            return peak * settings.decay ** (past // settings.decay_epochs)
        case "exponential":
            return peak * settings.decay ** max(0, past - settings.decay_epochs + 1)
        case "constant":
            return peak


def default_training(model: ModelLike) -> TrainingSettings:
    """Return the training settings of a model.

    Args:
        model: A name of `sgpmil.list_models`, a class, or a model. One that is not registered, or
            registered without a training, has the defaults of `TrainingSettings`.

    Raises:
        SettingsError: A training setting that the model was registered with does not exist.

    Example:
        >>> default_training("clam-sb").patience
        20
    """
    try:
        training = find_model(model).training
    except SettingsError:  # no such name
        training = {}
    return _replaced(TrainingSettings(), training)


def resolve_training(
    model: ModelLike, training: TrainingSettings | Mapping[str, Any] | None
) -> TrainingSettings:
    """Return the training settings of a model with single values replaced.

    Where the values change the number of bags of an optimiser step and none of them is the
    learning rate, the model's own rate is scaled: see `scaled_rate`. A given rate and a whole
    `TrainingSettings` are kept as they are.

    Args:
        model: A name of `sgpmil.list_models`, a class, or a model.
        training: All settings; or values that replace single ones of the model's own; or None for
            the model's own.

    Raises:
        SettingsError: A value is unknown or impossible.

    Example:
        >>> resolve_training("clam-sb", {"epochs": 3}).learning_rate
        0.0001
        >>> resolve_training("clam-sb", {"bags_per_step": 4}).learning_rate
        0.0002
    """
    if isinstance(training, TrainingSettings):
        return training
    given = dict(training or {})
    return _replaced(training_base(model, given), given)


def training_base(model: ModelLike, given: Mapping[str, Any]) -> TrainingSettings:
    """Return the training settings of a model before given values replace single ones.

    Args:
        model: A name of `sgpmil.list_models`, a class, or a model.
        given: The values by name, not checked yet.
    """
    own = default_training(model)
    if "select" in given or "patience" in given:
        # A choice of the caller needs validation slides.
        own = replace(own, validation=TrainingSettings().validation)
    if "learning_rate" in given:
        return own
    bags = math.prod(
        _count(given.get(name, getattr(own, name)))
        for name in ("bags_per_step", "accumulate_steps")
    )
    # An impossible number is refused when it replaces the model's own.
    return replace(own, learning_rate=scaled_rate(own, bags)) if bags else own


def scaled_rate(own: TrainingSettings, bags: int) -> float:
    r"""Return the learning rate of a training with another number of bags an optimiser step.

    With $B_0$ bags of an optimiser step (`bags_per_step` times `accumulate_steps`) at the rate
    $\eta_0$, it is for $B$ bags

    $$ \eta(B) = \eta_0 \sqrt{B / B_0}. $$

    The mean gradient of more bags is less noisy by the root of their number, and the length of an
    Adam step is the learning rate, independent of the gradient's length. The page of results on
    packed steps shows measurements.

    Example:
        >>> scaled_rate(TrainingSettings(learning_rate=1e-3, bags_per_step=2), 8)
        0.002
    """
    usual = own.bags_per_step * own.accumulate_steps
    return own.learning_rate * math.sqrt(bags / usual)


def _replaced(base: TrainingSettings, given: Mapping[str, Any]) -> TrainingSettings:
    known = [field.name for field in fields(TrainingSettings)]
    values = {}
    for name, value in given.items():
        if name not in known:
            raise SettingsError(unknown_name("training setting", name, known))
        is_checked_later = name == "prevalence"  # of several kinds
        values[name] = (
            value if is_checked_later else checked_value(name, value, getattr(base, name))
        )
    return replace(base, **values)


def _count(value: Any) -> int:
    """Read a number of bags; 0 where it is none."""
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError):
        return 0
