"""The learning rate of each epoch: linear warm-up, then a cosine."""

import math

from sgpmil.training.settings import TrainingSettings

__all__ = ["learning_rate"]


def learning_rate(settings: TrainingSettings, epoch: int) -> float:
    r"""Return the learning rate of an epoch, counted from 0.

    With peak $\eta$, warm-up start $\eta_0$, floor $\eta_1$, $W$ warm-up epochs of $T$: rising
    linearly from $\eta_0$ at epoch 0 to $\eta$ at epoch $W - 1$, and from epoch $W$ on

    $$ \eta_1 + (\eta - \eta_1)\,\tfrac12\big(1 + \cos(\pi (t - W) / (T - W))\big). $$

    Example:
        >>> learning_rate(TrainingSettings(epochs=20, learning_rate=1.0), 6)
        1.0
    """
    peak, floor = settings.learning_rate, settings.min_learning_rate
    warmup = min(settings.warmup_epochs, settings.epochs)
    if epoch < warmup:
        start = settings.warmup_learning_rate
        return start + (peak - start) * epoch / max(1, warmup - 1) if warmup > 1 else peak
    progress = (epoch - warmup) / max(1, settings.epochs - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * progress)) / 2
