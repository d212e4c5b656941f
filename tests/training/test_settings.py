import dataclasses
import math
import re
from dataclasses import replace
from pathlib import Path

import jaxtyping
import pytest
import torch

from sgpmil.errors import SettingsError
from sgpmil.experiments.recipe import load_recipe
from sgpmil.models.registry import list_models
from sgpmil.training.settings import (
    TrainingSettings,
    default_training,
    learning_rate,
    resolve_training,
)

from .conftest import quick


@pytest.fixture
def unchecked():
    """Turn the tests' type checks off, as they are for users."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", -3),
        ("epochs", math.nan),
        ("bags_per_step", 0),
        ("learning_rate", -1e-4),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("weight_decay", -1.0),
        ("warmup_epochs", -1),
        ("warmup_learning_rate", -1e-5),
        ("min_learning_rate", -1e-5),
        ("gradient_clip", -1.0),
        ("patience", -1),
        ("seed", -1),
        ("monitor", "accuracy"),
        ("select", "worst"),
        ("precision", "8"),
        ("device", "tpu"),
        ("optimiser", "adagrad"),
        ("schedule", "linear"),
        ("validation", "no"),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("momentum", math.nan),
        ("decay", 0.0),
        ("decay", 1.5),
        ("decay", math.nan),
        ("decay_epochs", 0),
        ("min_epochs", -1),
        ("accumulate_steps", 0),
    ],
)
def test_an_impossible_value_is_refused_with_its_name(unchecked, name, value):
    with pytest.raises(SettingsError, match=rf"Expected {name} .*but got .*{value}"):
        TrainingSettings(**{name: value})


@pytest.mark.parametrize(
    "values",
    [
        {"epochs": 1, "bags_per_step": 1, "accumulate_steps": 1},
        {"betas": (0.0, 0.0), "momentum": 0.0, "decay": 1.0, "decay_epochs": 1, "min_epochs": 0},
        {"warmup_epochs": 0, "gradient_clip": 0.0, "patience": 0, "seed": 0},
        {"weight_decay": 0.0, "min_learning_rate": 0.0, "warmup_learning_rate": 0.0},
    ],
)
def test_the_smallest_values_are_accepted(values):
    settings = TrainingSettings(**values)
    assert {name: getattr(settings, name) for name in values} == values


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 0.99, 0.999), (0.9, 1.0), (-0.1, 0.9)])
def test_impossible_betas_are_refused(unchecked, betas):
    with pytest.raises(SettingsError, match=r"Expected betas to be two numbers .* but got"):
        TrainingSettings(betas=betas)


def test_a_number_in_place_of_a_name_is_shown_as_what_it_is(unchecked):
    with pytest.raises(SettingsError, match=r"precision to be one of auto, 32, .* but got 32"):
        TrainingSettings(precision=32)


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainingSettings().epochs = 3


def linearcosine(t, *, base, warmup_lr, eta_min, W, T):
    """The released code's schedule, as methods.md section 0 states it."""
    if t == 0:
        return warmup_lr
    if t < W:
        return warmup_lr + t * (base - warmup_lr) / (W - 1)
    if t == W:
        return base
    return eta_min + (base - eta_min) * (1 + math.cos(math.pi * (t - W) / (T - W))) / 2


@pytest.mark.parametrize(("W", "T"), [(6, 20), (2, 7), (5, 30), (3, 10)])
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


@pytest.mark.parametrize("epochs", [2, 3, 5, 6, 9, 13])
def test_a_short_training_is_at_most_three_tenths_warmup_and_ends_below_the_peak(epochs):
    settings = quick(
        epochs=epochs, warmup_epochs=6, learning_rate=1.0, min_learning_rate=0.0,
        warmup_learning_rate=0.2,
    )  # fmt: skip
    rates = [learning_rate(settings, epoch) for epoch in range(epochs)]
    rising = rates.index(1.0) + 1 if rates[0] < 1 else 0
    assert rising <= 0.3 * epochs
    assert rates[rising:] == sorted(rates[rising:], reverse=True)
    assert rates[-1] <= 0.5


@pytest.mark.parametrize("warmup", [0, 1, 6])
def test_a_single_epoch_is_trained_at_the_peak(warmup):
    settings = quick(epochs=1, warmup_epochs=warmup, learning_rate=0.7)
    assert learning_rate(settings, 0) == 0.7


def test_one_epoch_of_warmup_has_reached_the_peak():
    settings = quick(epochs=4, warmup_epochs=1, learning_rate=0.6, min_learning_rate=0.0)
    rates = [learning_rate(settings, epoch) for epoch in range(4)]
    assert rates == pytest.approx([0.6, 0.6, 0.45, 0.15])


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
        10,
        schedule=name,
        warmup_epochs=3,
        warmup_learning_rate=0.1,
        decay=0.5,
        decay_epochs=2,
    )
    assert found[:7] == pytest.approx([0.1, 0.2, 0.3, *after])


# As the authors publish them, typed by hand: optimiser, learning rate, weight decay, schedule,
# epochs, bags a step, and patience with the epochs before which it stops nothing.
PUBLISHED = {
    "sgpmil": ("adamw", 6e-4, 0.6, "cosine", 40, 4, (0, 0)),
    "agp": ("adamw", 2e-4, 5e-5, "cosine", 20, 1, (0, 0)),
    "abmil": ("adam", 5e-4, 1e-4, "constant", 20, 1, (0, 0)),
    "mean-pool": ("adam", 5e-4, 1e-4, "constant", 20, 1, (0, 0)),
    "max-pool": ("adam", 5e-4, 1e-4, "constant", 20, 1, (0, 0)),
    "clam-sb": ("adam", 1e-4, 1e-5, "constant", 200, 1, (20, 50)),
    "clam-mb": ("adam", 1e-4, 1e-5, "constant", 200, 1, (20, 50)),
    "dsmil": ("adam", 1e-4, 1e-3, "cosine", 50, 1, (10, 0)),
    "transmil": ("lookahead-radam", 2e-4, 1e-5, "constant", 200, 1, (10, 0)),
    "dgrmil": ("sgd", 5e-4, 1e-4, "cosine", 200, 1, (0, 0)),
    "bayesmil": ("adam", 1e-4, 2e-5, "constant", 200, 1, (20, 50)),
    "mixmil": ("adam", 1e-3, 0.0, "constant", 1000, 64, (0, 0)),
    "kernel-attention": ("adam", 1e-4, 5e-3, "step", 200, 1, (20, 0)),
    "bag-size": ("adam", 0.05, 0.0, "constant", 20, 8, (0, 0)),
}

# What only one or few of them have.
BETAS = {"dsmil": (0.5, 0.9)}
ACCUMULATE = {"transmil": 2}
CLIP = {"mixmil": 0.0}
UNBALANCED = {"mixmil"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_default_is_what_is_published(name):
    found = default_training(name)
    patience, _ = PUBLISHED[name][-1]
    assert (
        found.optimiser,
        found.learning_rate,
        found.weight_decay,
        found.schedule,
        found.epochs,
        found.bags_per_step,
        (found.patience, found.min_epochs),
    ) == PUBLISHED[name]
    assert found.select == ("best" if patience else "last")
    assert found.validation == ("optional" if patience else "required")
    assert found.monitor == "loss"
    assert found.betas == BETAS.get(name, (0.9, 0.999))
    assert found.accumulate_steps == ACCUMULATE.get(name, 1)
    assert found.gradient_clip == CLIP.get(name, 1.0)
    assert found.balanced_sampling == (name not in UNBALANCED)
    assert found.precision == "auto"


def cosine(peak, floor, share):
    return floor + (peak - floor) * (1 + math.cos(math.pi * share)) / 2


@pytest.mark.parametrize(
    ("name", "rates"),
    {
        "abmil": {0: 5e-4, 19: 5e-4},
        "transmil": {0: 2e-4, 199: 2e-4},
        "agp": {0: 2e-4, 10: cosine(2e-4, 1e-7, 0.5), 19: cosine(2e-4, 1e-7, 19 / 20)},
        "dsmil": {0: 1e-4, 25: cosine(1e-4, 5e-6, 0.5), 49: cosine(1e-4, 5e-6, 49 / 50)},
        "dgrmil": {0: 0.0, 9: 5e-4, 10: 5e-4, 105: cosine(5e-4, 1e-5, 0.5)},
        "kernel-attention": {0: 1e-4, 59: 1e-4, 60: 1e-5, 119: 1e-5, 120: 1e-6, 180: 1e-7},
        "sgpmil": {0: 1e-5, 5: 6e-4, 6: 6e-4, 23: cosine(6e-4, 1e-7, 0.5)},
    }.items(),
)
def test_the_learning_rate_goes_as_published(name, rates):
    found = {epoch: learning_rate(default_training(name), epoch) for epoch in rates}
    assert found == pytest.approx(rates)


def test_sgd_of_dgrmil_has_momentum():
    assert default_training("dgrmil").momentum == 0.9


def documented():
    """The rows of the documentation's table, a model each."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    for line in page.read_text().splitlines():
        if line.startswith("| `"):
            names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            for name in re.findall("`(.+?)`", names):
                yield name, cells


def test_the_documentation_says_the_same():
    rows = dict(documented())
    assert set(rows) == set(PUBLISHED)
    for name, (optimiser, rate, weight_decay, schedule, epochs, stop, bags) in rows.items():
        found = default_training(name)
        assert optimiser.split(",")[0].lower() == found.optimiser
        assert (float(rate), float(weight_decay)) == (found.learning_rate, found.weight_decay)
        assert int(epochs) == found.epochs
        stopping = [n for n in (found.patience, found.min_epochs) if n]
        assert [int(n) for n in re.findall(r"\d+", stop)] == stopping
        assert int(bags.split()[-1]) == found.bags_per_step
        assert ("passes" in bags) == (found.accumulate_steps > 1)
        words = {"cosine": "cosine", "constant": "constant", "step": "every"}
        assert words[found.schedule] in schedule
        if found.schedule == "cosine":
            assert float(schedule.split()[-1]) == found.min_learning_rate


def test_every_model_has_its_own():
    assert set(list_models()) <= set(PUBLISHED)
    assert default_training("my-own") == TrainingSettings()


def test_single_values_replace_those_of_the_models_own():
    found = resolve_training("clam-sb", {"epochs": 3})
    assert found == replace(default_training("clam-sb"), epochs=3)
    assert resolve_training("clam-sb", None) == default_training("clam-sb")
    whole = TrainingSettings(epochs=3)
    assert resolve_training("clam-sb", whole) is whole


def test_asking_for_early_stopping_asks_for_validation():
    assert resolve_training("clam-sb", {"patience": 5}).validation == "required"
    assert resolve_training("clam-sb", {"epochs": 5}).validation == "optional"


def test_an_unknown_value_is_refused():
    with pytest.raises(SettingsError, match=r"among epochs, .* but got 'epoch'\."):
        resolve_training("abmil", {"epoch": 3})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"patience": None}, "patience to be a whole number"),
        ({"epochs": "many"}, "epochs to be a whole number"),
        ({"learning_rate": "1e-4x"}, "learning_rate to be a finite number"),
        ({"betas": 0.9}, "betas to be a list"),
    ],
)
def test_values_of_another_kind_are_refused(given, named):
    with pytest.raises(SettingsError, match=named):
        resolve_training("abmil", given)


# More bags an optimiser step

ROOT = 2**0.5


@pytest.mark.parametrize(
    ("model", "given", "rate"),
    [
        # Worked out by hand: own rate times the root of the ratio of bags.
        ("sgpmil", {"bags_per_step": 2}, 6e-4 / ROOT),
        ("sgpmil", {"bags_per_step": 8}, 6e-4 * ROOT),
        ("sgpmil", {"bags_per_step": 16}, 12e-4),
        ("sgpmil", {"bags_per_step": 1}, 3e-4),
        ("abmil", {"bags_per_step": 16}, 20e-4),
        ("mixmil", {"bags_per_step": 16}, 5e-4),
        # What counts is the bags of an optimiser step, however they get there.
        ("sgpmil", {"accumulate_steps": 4}, 12e-4),
        ("sgpmil", {"bags_per_step": 1, "accumulate_steps": 4}, 6e-4),
        ("transmil", {"accumulate_steps": 1}, 2e-4 / ROOT),
        ("transmil", {"bags_per_step": 4}, 4e-4),
        ("transmil", {"bags_per_step": 2, "accumulate_steps": 1}, 2e-4),
        ("my-own", {"bags_per_step": 8}, 8e-4),
    ],
)
def test_the_learning_rate_goes_with_the_root_of_the_bags(model, given, rate):
    found = resolve_training(model, given)
    assert found.learning_rate == pytest.approx(rate, rel=1e-12)
    # And nothing else is changed.
    assert found == replace(default_training(model), learning_rate=found.learning_rate, **given)


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_models_own_bags_leave_its_rate_alone_to_the_last_digit(model):
    own = default_training(model)
    given = {"bags_per_step": own.bags_per_step, "accumulate_steps": own.accumulate_steps}
    assert resolve_training(model, given) == own


@pytest.mark.parametrize("rate", [4e-4, 1e-3, 0.0])
def test_a_rate_that_is_given_is_taken_as_it_is(rate):
    found = resolve_training("sgpmil", {"bags_per_step": 32, "learning_rate": rate})
    own = default_training("sgpmil")
    assert found == replace(own, bags_per_step=32, learning_rate=rate)


def test_all_of_a_training_is_taken_as_it_is():
    whole = TrainingSettings(bags_per_step=32)
    assert resolve_training("sgpmil", whole).learning_rate == 4e-4
    # So that what is resolved once is not scaled again.
    once = resolve_training("sgpmil", {"bags_per_step": 32})
    assert resolve_training("sgpmil", once) is once


def test_a_recipe_scales_the_rate_as_well_and_once():
    given = {"data.features": "f", "training.bags_per_step": 16}
    found = load_recipe(values=given).training
    assert found == resolve_training("sgpmil", {"bags_per_step": 16})
    assert resolve_training("sgpmil", found).learning_rate == pytest.approx(12e-4)
    found = load_recipe(values=given, assignments=["training.learning-rate=4e-4"]).training
    assert found.learning_rate == 4e-4


@pytest.mark.parametrize("text", ["8", "8.0", "'8'"])
def test_a_recipe_that_writes_the_bags_otherwise_scales_the_rate_too(text):
    given = {"data.features": "f"}
    found = load_recipe(values=given, assignments=[f"training.bags-per-step={text}"]).training
    assert (found.bags_per_step, found.learning_rate) == (8, pytest.approx(6e-4 * ROOT))


@pytest.mark.parametrize("bags", [0, -4, "many", None, float("inf"), 2.5])
def test_an_impossible_number_of_bags_is_refused(bags):
    with pytest.raises(SettingsError, match="bags_per_step"):
        resolve_training("sgpmil", {"bags_per_step": bags})
