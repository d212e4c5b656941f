"""Training settings of a model: those registered beside its class, with single values replaced.

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
from sgpmil.models.registry import ModelLike, checked_value, find_model, unknown_name
from sgpmil.training.settings import TrainingSettings

__all__ = ["default_training", "resolve_training", "scaled_rate", "training_base"]


def default_training(model: ModelLike) -> TrainingSettings:
    """Return the training settings of a model.

    Args:
        model: A name of `sgpmil.list_models`, a class, or a model. One that is not registered, or
            registered without a training, is trained as SGPMIL is.

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


def _replaced(base: TrainingSettings, given: Mapping[str, Any]) -> TrainingSettings:
    known = [field.name for field in fields(TrainingSettings)]
    values = {}
    for name, value in given.items():
        if name not in known:
            raise SettingsError(unknown_name("training setting", name, known))
        values[name] = checked_value(name, value, getattr(base, name))
    return replace(base, **values)


def _count(value: Any) -> int:
    """Read a number of bags; 0 where it is none."""
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError):
        return 0
