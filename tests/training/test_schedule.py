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


def schedule(count=30, **values):
    settings = quick(epochs=count, learning_rate=0.3, **values)
    return [learning_rate(settings, epoch) for epoch in range(count)]


@pytest.mark.parametrize(("every", "factor"), [(60, 0.1), (7, 0.5), (1, 0.9)])
def test_step_is_torchs_step(every, factor):
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    reference = torch.optim.lr_scheduler.StepLR(optimiser, step_size=every, gamma=factor)
    for rate in schedule(150, schedule="step", decay=factor, decay_epochs=every):
        assert rate == pytest.approx(reference.get_last_lr()[0])
        optimiser.step()
        reference.step()


def test_exponential_decays_every_epoch_from_a_given_one_on():
    # The first AGP: ten epochs at the peak, then times exp(-0.1) at the start of each.
    expected, rate = [], 0.3
    for epoch in range(30):
        rate *= 1.0 if epoch < 10 else math.exp(-0.1)
        expected.append(rate)
    found = schedule(schedule="exponential", decay=math.exp(-0.1), decay_epochs=10)
    assert found == pytest.approx(expected)


def test_exponential_from_the_first_epoch_is_torchs():
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    reference = torch.optim.lr_scheduler.ExponentialLR(optimiser, gamma=0.8)
    for rate in schedule(schedule="exponential", decay=0.8, decay_epochs=1):
        assert rate == pytest.approx(reference.get_last_lr()[0])
        optimiser.step()
        reference.step()


def test_constant_stays():
    assert schedule(schedule="constant") == [0.3] * 30


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("constant", [0.3, 0.3, 0.3, 0.3]),
        ("step", [0.3, 0.3, 0.15, 0.15]),
        ("exponential", [0.3, 0.3, 0.15, 0.075]),
    ],
)
def test_decay_is_counted_from_the_end_of_the_warmup(name, after):
    found = schedule(
        7,
        schedule=name,
        warmup_epochs=3,
        warmup_learning_rate=0.1,
        decay=0.5,
        decay_epochs=2,
    )
    assert found == pytest.approx([0.1, 0.2, 0.3, *after])
