import dataclasses
import math

import jaxtyping
import pytest

from sgpmil.errors import SettingsError
from sgpmil.training.settings import TrainingSettings


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
        ("logger", "paper"),
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
