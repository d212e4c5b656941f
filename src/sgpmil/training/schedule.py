"""The learning rate of each epoch: linear warm-up, then a cosine, a decay or nothing."""

import math

from sgpmil.training.settings import TrainingSettings

__all__ = ["learning_rate"]


def learning_rate(settings: TrainingSettings, epoch: int) -> float:
    r"""Return the learning rate of an epoch, counted from 0.

    With peak $\eta$, warm-up start $\eta_0$ and $W$ warm-up epochs of $T$: rising linearly from
    $\eta_0$ at epoch 0 to $\eta$ at epoch $W - 1$, and from epoch $W$ on, with $u = t - W$, floor
    $\eta_1$, factor $\gamma$ (`decay`) and $E$ epochs (`decay_epochs`):

    - cosine: $\eta_1 + (\eta - \eta_1)\,\tfrac12\big(1 + \cos(\pi u / (T - W))\big)$
    - step: $\eta\,\gamma^{\lfloor u / E \rfloor}$
    - exponential: $\eta\,\gamma^{\max(0,\, u - E + 1)}$
    - constant: $\eta$

    Example:
        >>> learning_rate(TrainingSettings(epochs=20, learning_rate=1.0), 6)
        1.0
    """
    peak, floor = settings.learning_rate, settings.min_learning_rate
    warmup = min(settings.warmup_epochs, settings.epochs)
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
