import json
import shutil

import pytest

from sgpmil import list_models
from sgpmil.cli.output import MODEL_NAMES
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.run import Run


@pytest.fixture
def trained(sgpmil, slides, tiny, tmp_path):
    folder, labels = slides
    run = tmp_path / "run"
    arguments = ["train", "--features", folder, "--labels", labels, "--run", run, "--epochs", "6"]
    arguments += ["--learning_rate", "0.01", "--set", "data.folds=2", *tiny]
    return run, arguments


@pytest.mark.slow
@pytest.mark.filterwarnings("default::sgpmil.evaluation.seen_slides.SeenSlidesWarning")
@pytest.mark.filterwarnings("default::sgpmil.bags.reading.SkippedSlideWarning")
def test_train_predict_evaluate(sgpmil, slides, trained, tmp_path):
    folder, labels = slides
    run, arguments = trained
    code, out, _ = sgpmil(*arguments)
    assert code == 0
    assert "classes 0 = normal, 1 = tumor" in out
    assert str(run) in out
    assert (run / "figures" / "roc.png").stat().st_size > 10_000
    settings = json.loads((run / "run.json").read_text())["settings"]
    assert settings["training"]["learning_rate"] == 0.01
    assert settings["model_settings"]["num_inducing"] == 5

    code, _, err = sgpmil(*arguments)
    assert code == 2
    assert "--resume" in err
    assert sgpmil(*arguments, "--resume")[0] == 0
    code, _, err = sgpmil(*arguments, "--resume", "--seed", "1")
    assert code == 2
    assert "training.seed was 0 and is now 1" in err

    code, out, _ = sgpmil("evaluate", run, "--full")
    assert code == 0
    assert "AUC" in out
    assert "1.000 ± 0.000" in out

    predictions = tmp_path / "predictions"
    assert sgpmil("predict", run / "fold-0", folder, "--out", predictions)[0] == 0
    table = read_predictions(predictions / "predictions.parquet")
    assert len(table) == 20
    assert all(p.label is None for p in table.predictions)
    assert (predictions / "attention" / "007.slide.h5").exists()
    assert len((predictions / "predictions.csv").read_text().splitlines()) == 21
    code, _, err = sgpmil("predict", run / "fold-0", folder, "--out", predictions)
    assert code == 2
    assert "--overwrite" in err
    code, _, err = sgpmil("evaluate", predictions)
    assert code == 2
    assert "label" in err
    again = [run / "fold-0", folder, "--out", predictions, "--overwrite", "--labels", labels]
    assert sgpmil("predict", *again)[0] == 0
    code, _, err = sgpmil("evaluate", predictions)
    assert code == 0
    assert "of 20 slides" in " ".join(err.split())
    assert "trained on: left out" in " ".join(err.split())

    (tmp_path / "seen").mkdir()
    for slide in Run.open(run).splits["0"].train:
        shutil.copyfile(folder / f"{slide}.h5", tmp_path / "seen" / f"{slide}.h5")
    places = [run / "fold-0", tmp_path / "seen", "--out", tmp_path / "of_seen"]
    code, out, err = sgpmil("predict", *places, "--labels", labels, "--skip-missing")
    assert code == 0, err
    assert "Next:" not in out
    assert "nothing can be measured on them" in " ".join(out.split())


def test_every_model_is_named_in_the_help():
    words = MODEL_NAMES.removesuffix(", or a plug-in's").split(", ")
    assert sorted(words) == list_models()


def test_a_model_is_trained_with_its_own_settings(sgpmil, slides, tmp_path):
    folder, labels = slides
    run = tmp_path / "run"
    arguments = ["--features", folder, "--labels", labels, "--run", run, "--model", "abmil"]
    arguments += ["--epochs", "1", "--fold", "0", "--set", "model.settings.hidden-dim=4"]
    assert sgpmil("train", *arguments)[0] == 0
    training = json.loads((run / "run.json").read_text())["settings"]["training"]
    assert (training["optimiser"], training["learning_rate"]) == ("adam", 5e-4)
    assert (training["bags_per_step"], training["epochs"]) == (1, 1)


def test_unknown_setting_is_named_with_its_path(sgpmil, trained):
    code, _, err = sgpmil(*trained[1], "--set", "training.lerning-rate=1")
    assert code == 2
    assert "training.lerning_rate" in err


def test_labels_that_do_not_fit_are_counted(sgpmil, slides, trained):
    (slides[0] / "004.slide.h5").unlink()
    code, _, err = sgpmil(*trained[1])
    assert code == 2
    assert "1" in err
    assert "004.slide" in err
    assert not trained[0].exists()


def test_missing_features_are_asked_for(sgpmil):
    code, _, err = sgpmil("train")
    assert code == 2
    assert "data" in err


def test_init_writes_a_recipe_once(sgpmil, tmp_path):
    path = tmp_path / "recipe.yaml"
    assert sgpmil("init", path)[0] == 0
    path.write_text(path.read_text() + "# mine\n")
    code, _, err = sgpmil("init", path)
    assert code == 2
    assert "--overwrite" in err
    assert "# mine" in path.read_text()
