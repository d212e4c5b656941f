"""Each model's own published training, which is its default.

Optimiser, schedule, epochs and stopping are those of each model's authors, from paper and code.
Common to all, unless a model needs otherwise, is what the SGPMIL paper's code does for every model:
one bag a step, gradients clipped at norm 1, classes drawn equally often. Where an author stops
early or keeps the best epoch and there are no validation slides, all epochs are trained.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from sgpmil.errors import SettingsError
from sgpmil.models.setting_values import checked_value, unknown_name
from sgpmil.training.settings import TrainingSettings

__all__ = ["default_training", "resolve_training", "scaled_rate", "training_base"]

_ONE_BAG = TrainingSettings(bags_per_step=1, warmup_epochs=0)

# Ilse, Tomczak, Welling, ICML 2018 (MNIST bags; the paper trains no slides).
_ABMIL = replace(
    _ONE_BAG,
    epochs=20,
    optimiser="adam",
    learning_rate=5e-4,
    weight_decay=1e-4,
    schedule="constant",
)

# Lu et al., Nature Biomedical Engineering 2021.
_CLAM = replace(
    _ONE_BAG,
    epochs=200,
    optimiser="adam",
    learning_rate=1e-4,
    weight_decay=1e-5,
    schedule="constant",
    select="best",
    patience=20,
    min_epochs=50,
    validation="optional",
)

_DEFAULTS: dict[str, TrainingSettings] = {
    # This package's own; the paper's are the recipe "paper".
    "sgpmil": TrainingSettings(),
    # The released configuration of the SGPMIL paper.
    "agp": replace(
        _ONE_BAG,
        epochs=20,
        optimiser="adamw",
        learning_rate=2e-4,
        weight_decay=5e-5,
        schedule="cosine",
        min_learning_rate=1e-7,
    ),
    "abmil": _ABMIL,
    # Nothing is published for plain pooling; it is ABMIL with the attention fixed.
    "mean-pool": _ABMIL,
    "max-pool": _ABMIL,
    "clam-sb": _CLAM,
    "clam-mb": _CLAM,
    # Li, Li, Eliceiri, CVPR 2021.
    "dsmil": replace(
        _ONE_BAG,
        epochs=50,
        optimiser="adam",
        betas=(0.5, 0.9),
        learning_rate=1e-4,
        weight_decay=1e-3,
        schedule="cosine",
        min_learning_rate=5e-6,
        select="best",
        patience=10,
        validation="optional",
    ),
    # Shao et al., NeurIPS 2021; in half precision, which is a matter of speed.
    "transmil": replace(
        _ONE_BAG,
        epochs=200,
        optimiser="lookahead-radam",
        learning_rate=2e-4,
        weight_decay=1e-5,
        schedule="constant",
        accumulate_steps=2,
        select="best",
        patience=10,
        validation="optional",
    ),
    # Zhu et al., ECCV 2024.
    "dgrmil": replace(
        _ONE_BAG,
        epochs=200,
        optimiser="sgd",
        momentum=0.9,
        learning_rate=5e-4,
        weight_decay=1e-4,
        schedule="cosine",
        warmup_epochs=10,
        warmup_learning_rate=0.0,
        min_learning_rate=1e-5,
    ),
    # Cui et al., ICLR 2023: CLAM's loop.
    "bayesmil": replace(_CLAM, weight_decay=2e-5),
    # Engelmann et al., AISTATS 2024: the mean over a step's bags needs many of them.
    "mixmil": replace(
        _ONE_BAG,
        epochs=1000,
        optimiser="adam",
        learning_rate=1e-3,
        weight_decay=0.0,
        schedule="constant",
        bags_per_step=64,
        gradient_clip=0.0,
        balanced_sampling=False,
    ),
    # Rymarczyk et al., WACV 2021.
    # How it is stopped before its 200 epochs is not published.
    "kernel-attention": replace(
        _ONE_BAG,
        epochs=200,
        optimiser="adam",
        learning_rate=1e-4,
        weight_decay=5e-3,
        schedule="step",
        decay=0.1,
        decay_epochs=60,
        select="best",
        patience=20,
        validation="optional",
    ),
    # A logistic regression on one number; nothing is published.
    "bag-size": replace(
        _ONE_BAG,
        epochs=20,
        optimiser="adam",
        learning_rate=0.05,
        weight_decay=0.0,
        schedule="constant",
        bags_per_step=8,
    ),
}


def default_training(model: str) -> TrainingSettings:
    """Return how a model is trained unless told otherwise.

    Args:
        model: A name of `sgpmil.list_models`; a model of your own is trained as SGPMIL is.

    Example:
        >>> default_training("clam-sb").patience
        20
    """
    return _DEFAULTS.get(model, TrainingSettings())


def resolve_training(
    model: str, training: TrainingSettings | Mapping[str, Any] | None
) -> TrainingSettings:
    """Return how a model is trained.

    Where single values change the number of bags of an optimiser step and none of them is the
    learning rate, the model's own is scaled: see `scaled_rate`. A rate that is given, and
    all of a `TrainingSettings`, is taken as it is.

    Args:
        model: A name of `sgpmil.list_models`.
        training: All of it; or values that replace single ones of the model's own; or None for
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
    base = training_base(model, given)
    known = [field.name for field in fields(TrainingSettings)]
    for name, value in given.items():
        if name not in known:
            raise SettingsError(unknown_name("training setting", name, known))
        given[name] = checked_value(name, value, getattr(base, name))
    return replace(base, **given)


def training_base(model: str, given: Mapping[str, Any]) -> TrainingSettings:
    """Return what single values of a model's training are put into.

    Args:
        model: A name of `sgpmil.list_models`.
        given: The values by name, as yet unchecked.
    """
    own = default_training(model)
    if "select" in given or "patience" in given:
        # What was asked for is not left out for want of validation slides.
        own = replace(own, validation=TrainingSettings().validation)
    if "learning_rate" in given:
        return own
    bags = math.prod(
        _count(given.get(name, getattr(own, name)))
        for name in ("bags_per_step", "accumulate_steps")
    )
    # An impossible number is refused when the values are put in.
    return replace(own, learning_rate=scaled_rate(own, bags)) if bags else own


def scaled_rate(own: TrainingSettings, bags: int) -> float:
    r"""Return the learning rate of a training with another number of bags an optimiser step.

    With $B_0$ bags of an optimiser step (`bags_per_step` times `accumulate_steps`) at the rate
    $\eta_0$, it is for $B$ bags

    $$ \eta(B) = \eta_0 \sqrt{B / B_0}. $$

    The mean gradient of more bags is less noisy by the root of their number, and a step of Adam is
    as long as the learning rate whatever the gradient's length. The page of results on packed
    steps has what was measured.

    Args:
        own: The training to start from.
        bags: Bags of an optimiser step.

    Example:
        >>> scaled_rate(TrainingSettings(learning_rate=1e-3, bags_per_step=2), 8)
        0.002
    """
    usual = own.bags_per_step * own.accumulate_steps
    return own.learning_rate * math.sqrt(bags / usual)


def _count(value: Any) -> int:
    """Read a number of bags; 0 where it is none."""
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError):
        return 0
