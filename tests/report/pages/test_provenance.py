import json
import shlex
from dataclasses import asdict, replace

import pytest

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.experiments.recipe import load_recipe
from sgpmil.models.checkpoint import save_model
from sgpmil.models.prevalence import ClassShares
from sgpmil.models.registry import build_model, list_models, resolve_settings
from sgpmil.report.pages.blocks import Commands
from sgpmil.report.pages.provenance import (
    environment_section,
    prevalence_sentences,
    reproduction_section,
    settings_section,
    train_command,
)
from sgpmil.runs.run import Run
from sgpmil.training.settings import default_training, resolve_training

from .reported_run import material


def described(tmp_path, model, model_settings, training):
    settings = {
        "model": model,
        "model_settings": json.loads(
            json.dumps(vars(resolve_settings(model, model_settings)), default=str)
        ),
        "training": json.loads(json.dumps(asdict(resolve_training(model, training)))),
    }
    data = {"folder": "/data/my features", "labels": "/data/labels.csv"}
    found = material(path=tmp_path / "a run", num_folds=1)
    description = {"settings": settings, "data": data, "versions": {"torch": "2.0"}}
    return replace(found, run=Run(found.path, description))


def parsed(command):
    """Read a command as `sgpmil train` does."""
    words = shlex.split(command)
    assert words[:2] == ["sgpmil", "train"]
    options = list(zip(words[2::2], words[3::2], strict=True))
    single = dict(option for option in options if option[0] != "--set")
    names = {
        "--features": "data.features",
        "--labels": "data.labels",
        "--splits": "data.splits",
        "--model": "model.name",
    }
    values = {names[key]: value for key, value in single.items() if key in names}
    return load_recipe(
        values=values, assignments=[value for key, value in options if key == "--set"]
    ), single


@pytest.mark.parametrize(
    ("model", "model_settings", "training"),
    [
        ("sgpmil", {}, {}),
        (
            "sgpmil",
            {"hidden_dims": (8, 4), "num_inducing": 5, "kernel": "matern52"},
            {"epochs": 3, "learning_rate": 1e-5, "select": "best", "precision": "64"},
        ),
        ("clam-sb", {}, {"patience": 3}),
        ("sgpmil", {}, {"bags_per_step": 32}),
        ("sgpmil", {}, {"bags_per_step": 32, "learning_rate": 4e-4}),
        ("transmil", {}, {"accumulate_steps": 1, "learning_rate": 2e-4}),
        ("abmil", {}, {"seed": 7, "balanced_sampling": False, "betas": (0.8, 0.9)}),
    ],
)
def test_the_command_gives_the_same_settings_again(tmp_path, model, model_settings, training):
    found = described(tmp_path, model, model_settings, training)
    recipe, options = parsed(train_command(found.run, found.target))
    assert recipe.training == resolve_training(model, training)
    assert resolve_settings(recipe.model.name, recipe.model.settings) == resolve_settings(
        model, model_settings
    )
    assert str(recipe.data.features) == "/data/my features"
    assert options["--splits"] == str(tmp_path / "a run" / "splits")
    assert options["--run"] != str(tmp_path / "a run")  # nothing is replaced
    assert options["--classes"] == "normal,tumour"


def test_the_command_reads_the_same_tables(tmp_path):
    found = described(tmp_path, "abmil", {}, {})
    data = {**found.run.data, "slide_column": "name", "on_mismatch": "skip"}
    command = train_command(
        Run(found.path, {**found.run.description, "data": data}), ClassTarget(("n", "t"))
    )
    assert "--slide-column name --skip-missing --splits" in command


@pytest.mark.parametrize("model", list_models())
def test_defaults_need_no_settings(tmp_path, model):
    run = described(tmp_path, model, {}, {}).run
    assert "--set" not in train_command(run, ClassTarget(("normal", "tumour")))


def test_what_differs_is_marked(tmp_path):
    found = described(tmp_path, "sgpmil", {"num_inducing": 5}, {"epochs": 3})
    model, training = settings_section(found).blocks[1:]
    marked = [row for table in (model, training) for row in table.rows if row[0].endswith(" *")]
    assert marked == [("num_inducing *", "5"), ("epochs *", "3")]
    assert len(training.rows) == len(asdict(default_training("sgpmil")))


def test_predictions_of_another_system_have_no_history(tmp_path):
    found = replace(material(path=tmp_path, num_folds=1), run=None)
    for section in (settings_section(found), environment_section(found)):
        assert "not a run of sgpmil" in section.blocks[0].text
    (commands,) = reproduction_section(found, "sgpmil report x").blocks
    assert isinstance(commands, Commands)
    assert commands.lines == (f"sgpmil evaluate {shlex.quote(str(tmp_path))}", "sgpmil report x")


def test_the_origin_of_the_predictions_is_on_the_page(tmp_path):
    found = material(path=tmp_path, num_folds=2)
    folds = []
    for number, fold in enumerate(found.folds):
        origin = PredictionProvenance(
            model="abmil",
            source="runs/a",
            folds=(str(number),),
            encoders=("uni_v1",),
            created="2026-01-31T10:00:00+00:00",
            train=("t1", "t2", "t3")[: 2 + number],
            validation=("v1",),
        )
        folds.append(replace(fold, test=replace(fold.test, provenance=origin)))
    several = reproduction_section(replace(found, folds=tuple(folds)), "x").blocks
    assert [block.text for block in several[:2]] == [
        "Predicted by abmil of runs/a; 2 folds; uni_v1; 2026-01-31.",
        "Slides a fold: 2–3 training, 1 validation.",
    ]
    one, *_ = reproduction_section(replace(found, folds=(folds[1],), run=None), "x").blocks
    expected = "3 training and 1 validation slides; uni_v1; 2026-01-31."
    assert one.text == f"Predicted by abmil of runs/a; {expected}"
    # Of predictions without it, nothing is claimed.
    assert "Predicted by" not in str(reproduction_section(found, "x"))


def test_predictions_that_know_their_model_say_so(tmp_path):
    found = replace(material(path=tmp_path, num_folds=1), run=None)
    origin = PredictionProvenance(
        model="abmil", source="runs/a", version="0.1.0", settings={"model": {"hidden_dim": 7}}
    )
    test = replace(found.folds[0].test, provenance=origin)
    found = replace(found, folds=(replace(found.folds[0], test=test),))
    assert found.model == "abmil"
    _, table = settings_section(found).blocks
    assert table.rows == (("hidden_dim *", "7"),)
    (made,) = environment_section(found).blocks
    assert {("Model", "runs/a"), ("sgpmil", "0.1.0")} <= set(made.rows)


def test_the_environment_is_that_of_the_run(tmp_path):
    found = described(tmp_path, "sgpmil", {}, {})
    (table,) = environment_section(found).blocks
    assert ("torch", "2.0") in table.rows
    assert ("Data: folder", "/data/my features") in table.rows


def test_the_prevalence_of_the_probabilities_is_stated(tmp_path):
    found = material(path=tmp_path, num_folds=2)
    assert prevalence_sentences(found) == ()
    target = found.target
    folds = []
    for number, fold in enumerate(found.folds):
        model = build_model("mean-pool", in_dim=2, target=target)
        labels = [0] * (3 + number) + [1]
        model.shares = ClassShares.of_training(labels, target, "training", balanced=True)
        save_model(model, tmp_path / str(number) / "checkpoint.safetensors")
        folds.append(replace(fold, checkpoint=tmp_path / str(number)))
    first, second = target.names
    (same,) = prevalence_sentences(replace(found, folds=(folds[0],)))
    assert same == f"Probabilities are for a prevalence of {first} 75 %, {second} 25 %."
    mean, note = prevalence_sentences(replace(found, folds=tuple(folds)))
    assert f"{first} 77.5 %, {second} 22.5 %" in mean
    assert "mean over folds" in note
    unknown = (folds[0], replace(folds[1], checkpoint=None))
    assert prevalence_sentences(replace(found, folds=unknown)) == ()
