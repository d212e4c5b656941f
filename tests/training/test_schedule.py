import math

import pytest
import torch

from sgpmil.training.schedule import learning_rate

from .conftest import quick


def linearcosine(t, *, base, warmup_lr, eta_min, W, T):
    """The released code's schedule, as methods.md section 0 states it."""
    if t == 0:
        return warmup_lr
    if t < W:
        return warmup_lr + t * (base - warmup_lr) / (W - 1)
    if t == W:
        return base
    return eta_min + (base - eta_min) * (1 + math.cos(math.pi * (t - W) / (T - W))) / 2


@pytest.mark.parametrize(("W", "T"), [(6, 20), (2, 3), (5, 30), (3, 4)])
def test_is_the_published_linearcosine(W, T):
    settings = quick(
        epochs=T,
        warmup_epochs=W,
        learning_rate=6e-4,
        warmup_learning_rate=1e-5,
        min_learning_rate=1e-7,
    )
    for t in range(T):
        published = linearcosine(t, base=6e-4, warmup_lr=1e-5, eta_min=1e-7, W=W, T=T)
        assert learning_rate(settings, t) == pytest.approx(published, rel=1e-12)


def test_without_warmup_it_is_torchs_cosine():
    settings = quick(epochs=10, warmup_epochs=0, learning_rate=0.3, min_learning_rate=0.01)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=10, eta_min=0.01)
    for epoch in range(10):
        assert learning_rate(settings, epoch) == pytest.approx(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()


@pytest.mark.parametrize("warmup", [5, 6, 100])
def test_a_warmup_as_long_as_the_training_ends_at_the_peak(warmup):
    settings = quick(epochs=5, warmup_epochs=warmup, learning_rate=1.0, warmup_learning_rate=0.2)
    rates = [learning_rate(settings, epoch) for epoch in range(5)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize("warmup", [0, 1, 6])
def test_a_single_epoch_is_trained_at_the_peak(warmup):
    settings = quick(epochs=1, warmup_epochs=warmup, learning_rate=0.7)
    assert learning_rate(settings, 0) == 0.7


def test_one_epoch_of_warmup_has_reached_the_peak():
    settings = quick(epochs=3, warmup_epochs=1, learning_rate=0.7, min_learning_rate=0.0)
    rates = [learning_rate(settings, epoch) for epoch in range(3)]
    assert rates == pytest.approx([0.7, 0.7, 0.35])
