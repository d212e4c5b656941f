from dataclasses import replace
from pathlib import Path

import pytest

from sgpmil.errors import SettingsError
from sgpmil.experiments.recipe import (
    DataSection,
    ModelSection,
    Recipe,
    list_recipes,
    load_recipe,
    starter_recipe,
)
from sgpmil.training import settings
from sgpmil.training.settings import TrainingSettings, default_training


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("data:\n  features: f\ntraining:\n  learning-rate: 1e-3\n  epochs: 7\n")
    return path


def test_file_then_values_then_assignments(recipe):
    loaded = load_recipe(
        recipe,
        values={"training.epochs": 8, "training.seed": None, "model.name": "abmil"},
        assignments=["training.epochs=9", "training.weight-decay=1e-4", "model.settings.gated=no"],
    )
    assert loaded.data.features == Path("f")
    assert loaded.training.learning_rate == 1e-3
    assert loaded.training.epochs == 9
    assert loaded.training.weight_decay == 1e-4
    assert loaded.training.seed == 0
    assert loaded.model.settings == {"gated": False}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("data: {features: f, lables: l}", "data.lables"),
        ("data: {features: f}\ntrainig: {}", "trainig"),
        ("data: {features: f}\ntraining: {epoch: 3}", "training.epoch"),
        ("data: {features: f}\ntraining: {epochs: many}", "training.epochs"),
        ("data: {features: f}\nmodel: {settings: {jiter: 1}}", "jiter"),
        ("data: {features: f}\nmodel: {nam: abmil}", "model.nam"),
        ("training: {epochs: 3}", "data"),
        ("- a list", "sections"),
        ("data: [unclosed", "YAML"),
    ],
)
def test_problems_are_named_with_their_path(tmp_path, text, named):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=named):
        load_recipe(path)


def test_a_recipe_of_another_model_says_whose_it_is():
    with pytest.raises(SettingsError, match=r"preset of clam-sb .* recipe paper is of sgpmil"):
        load_recipe("paper", values={"data.features": "f", "model.name": "clam-sb"})


def test_a_setting_of_the_model_in_the_wrong_place_is_told_the_right_one(recipe):
    with pytest.raises(SettingsError, match=r"'model\.gp_dim'.*under model\.settings"):
        load_recipe(recipe, assignments=["model.gp_dim=8"])


@pytest.mark.parametrize(
    "assignment",
    [
        "hidden_dims=16",
        "num_samples=x",
        "gp_dim=3.5",
        "mean_scale=abc",
        "standardise=maybe",
        "kl_factor=-1",
        "jitter=-1",
    ],
)
def test_impossible_model_settings_are_refused(recipe, assignment):
    name = assignment.split("=")[0]
    with pytest.raises(SettingsError, match=f"In model.settings: .*{name}"):
        load_recipe(recipe, assignments=[f"model.settings.{assignment}"])


@pytest.mark.parametrize("name", ["paper", "released"])
def test_recipes_of_the_package(name):
    loaded = load_recipe(name, values={"data.features": "f"})
    assert loaded.model.settings == {"preset": name}
    assert loaded.training.learning_rate == 6e-4
    assert loaded.training.bags_per_step == 1
    assert name in list_recipes()


def test_precision_may_be_a_number(recipe):
    assert load_recipe(recipe, assignments=["training.precision=64"]).training.precision == "64"


def test_impossible_value_is_refused(recipe):
    with pytest.raises(SettingsError, match="epochs"):
        load_recipe(recipe, assignments=["training.epochs=0"])
    with pytest.raises(SettingsError, match="KEY=VALUE"):
        load_recipe(recipe, assignments=["training.epochs"])
    with pytest.raises(SettingsError, match="there is none"):
        load_recipe(recipe.with_name("absent.yaml"))


def test_starter_recipe_is_a_recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(starter_recipe())
    assert load_recipe(path).model.name == "sgpmil"


# The model's own training

OWN = TrainingSettings(epochs=5, optimiser="adam", select="best", patience=2, validation="optional")


@pytest.fixture
def own_training(monkeypatch):
    """Give ABMIL settings that differ from SGPMIL's wherever a test looks."""
    found = {"abmil": OWN, "sgpmil": TrainingSettings()}
    monkeypatch.setattr(settings, "default_training", found.__getitem__)


@pytest.mark.usefixtures("own_training")
def test_the_training_section_replaces_values_of_the_models_own(recipe):
    loaded = load_recipe(recipe, values={"model.name": "abmil"})
    assert loaded.training == replace(OWN, learning_rate=1e-3, epochs=7)
    assert load_recipe(recipe).training == TrainingSettings(learning_rate=1e-3, epochs=7)


@pytest.mark.usefixtures("own_training")
@pytest.mark.parametrize("section", ["", "training:\n", "training: {}\n", "training:\n  # none\n"])
def test_an_empty_training_section_is_the_models_own(tmp_path, section):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {{features: f}}\nmodel: {{name: abmil}}\n{section}")
    assert load_recipe(path).training == OWN


@pytest.mark.usefixtures("own_training")
def test_stopping_that_is_asked_for_is_not_left_out_for_want_of_validation(recipe):
    values = {"model.name": "abmil"}
    for assignment in ("training.patience=2", "training.select=best"):
        loaded = load_recipe(recipe, values=values, assignments=[assignment])
        assert loaded.training.validation == "required"
    both = ["training.patience=3", "training.validation=optional"]
    assert load_recipe(recipe, values=values, assignments=both).training.validation == "optional"


def test_settings_of_several_values_may_be_lists(recipe):
    loaded = load_recipe(recipe, assignments=["training.betas=[0.5, 0.9]"])
    assert loaded.training.betas == (0.5, 0.9)
    with pytest.raises(SettingsError, match="betas"):
        load_recipe(recipe, assignments=["training.betas=[0.5, 0.9, 0.99]"])


@pytest.mark.usefixtures("own_training")
def test_a_recipe_made_in_python_has_the_models_own_training():
    data, model = DataSection(features=Path("f")), ModelSection(name="abmil")
    assert Recipe(data=data, model=model).training == OWN
    assert Recipe(data=data).training == TrainingSettings()
    mine = TrainingSettings(epochs=3)
    assert Recipe(data=data, model=model, training=mine).training == mine


def test_the_starter_recipe_trains_another_model_with_its_own(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(starter_recipe().replace("name: sgpmil", "name: abmil"))
    loaded = load_recipe(path)
    assert loaded.model.name == "abmil"
    assert loaded.training == default_training("abmil")
    # What is commented out is what SGPMIL's own are.
    text = starter_recipe().replace("# epochs", "epochs").replace("# learning", "learning")
    path.write_text(text)
    assert load_recipe(path).training == default_training("sgpmil")
    assert "epochs: 40" in text
