import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sgpmil.errors import SettingsError
from sgpmil.experiments.recipe import load_recipe
from sgpmil.models.registry import list_models
from sgpmil.training.defaults import default_training, resolve_training
from sgpmil.training.schedule import learning_rate
from sgpmil.training.settings import TrainingSettings

# As the authors publish them, typed by hand: optimiser, learning rate, weight decay, schedule,
# epochs, bags a step, and patience with the epochs before which it stops nothing.
PUBLISHED = {
    "sgpmil": ("adamw", 4e-4, 1e-5, "cosine", 30, 2, (0, 0)),
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
        "sgpmil": {0: 1e-5, 5: 4e-4, 6: 4e-4, 18: cosine(4e-4, 1e-7, 0.5)},
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
    assert default_training("sgpmil") == TrainingSettings()
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
        ("sgpmil", {"bags_per_step": 2}, 4e-4),
        ("sgpmil", {"bags_per_step": 8}, 8e-4),
        ("sgpmil", {"bags_per_step": 32}, 16e-4),
        ("sgpmil", {"bags_per_step": 1}, 4e-4 / ROOT),
        ("abmil", {"bags_per_step": 16}, 20e-4),
        ("mixmil", {"bags_per_step": 16}, 5e-4),
        # What counts is the bags of an optimiser step, however they get there.
        ("sgpmil", {"accumulate_steps": 4}, 8e-4),
        ("sgpmil", {"bags_per_step": 1, "accumulate_steps": 2}, 4e-4),
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
    assert found == TrainingSettings(bags_per_step=32, learning_rate=rate)


def test_all_of_a_training_is_taken_as_it_is():
    whole = TrainingSettings(bags_per_step=32)
    assert resolve_training("sgpmil", whole).learning_rate == 4e-4
    # So that what is resolved once is not scaled again.
    once = resolve_training("sgpmil", {"bags_per_step": 32})
    assert resolve_training("sgpmil", once) is once


def test_a_recipe_scales_the_rate_as_well_and_once():
    given = {"data.features": "f", "training.bags_per_step": 32}
    found = load_recipe(values=given).training
    assert found == resolve_training("sgpmil", {"bags_per_step": 32})
    assert resolve_training("sgpmil", found).learning_rate == pytest.approx(16e-4)
    found = load_recipe(values=given, assignments=["training.learning-rate=4e-4"]).training
    assert found.learning_rate == 4e-4


@pytest.mark.parametrize("text", ["8", "8.0", "'8'"])
def test_a_recipe_that_writes_the_bags_otherwise_scales_the_rate_too(text):
    given = {"data.features": "f"}
    found = load_recipe(values=given, assignments=[f"training.bags-per-step={text}"]).training
    assert (found.bags_per_step, found.learning_rate) == (8, pytest.approx(8e-4))


@pytest.mark.parametrize("bags", [0, -4, "many", None, float("inf"), 2.5])
def test_an_impossible_number_of_bags_is_refused(bags):
    with pytest.raises(SettingsError, match="bags_per_step"):
        resolve_training("sgpmil", {"bags_per_step": bags})
