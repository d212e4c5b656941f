from pathlib import Path

import pytest

from sgpmil.bags import BagDataset, pack_bags
from sgpmil.errors import SettingsError
from sgpmil.experiments.recipe import list_recipes, load_recipe, read_data, starter_recipe


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


def test_folds_are_made_where_none_are_given(tmp_path, rng):
    features = [rng.normal(size=(3, 2)) for _ in range(12)]
    bags = BagDataset.from_arrays(features, [i % 2 for i in range(12)])
    pack_bags(bags, tmp_path / "store")
    values = {"data.features": tmp_path / "store", "data.folds": 3}
    read, folds = read_data(load_recipe(values=values).data)
    assert len(folds) == 3
    assert sorted(s for fold in folds for s in fold.test) == sorted(read.slide_ids)


def test_bags_without_labels_ask_for_them(tmp_path, rng):
    pack_bags(BagDataset.from_arrays([rng.normal(size=(3, 2))] * 4), tmp_path / "store")
    with pytest.raises(SettingsError, match="--labels"):
        read_data(load_recipe(values={"data.features": tmp_path / "store"}).data)
