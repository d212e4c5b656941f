import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

from sgpmil.bags.splits import Fold
from sgpmil.errors import BagError, ClusterError, RunFolderError, SettingsError, SplitError
from sgpmil.evaluation.predictor import predict
from sgpmil.experiments.recipe import draft_recipe, load_recipe
from sgpmil.experiments.train import read_data
from sgpmil.experiments.trials import TrialWork
from sgpmil.experiments.tune import TuneOptions, read_space, tune
from sgpmil.scaleout.search import Dimension
from sgpmil.training.fit import fit

COUNT = 40


@pytest.fixture
def recipe(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "features").mkdir()
    for i in range(COUNT):
        np.save(tmp_path / f"features/s{i:02d}.npy", rng.normal(size=(6, 4)) + 0.5 * (i % 2))
    rows = "".join(f"s{i:02d},{'ab'[i % 2]}\n" for i in range(COUNT))
    (tmp_path / "labels.csv").write_text(f"slide_id,label\n{rows}")
    text = f"""
        data: {{features: {tmp_path / "features"}, labels: {tmp_path / "labels.csv"}, folds: 4}}
        model: {{name: abmil, settings: {{hidden_dim: 4, attention_dim: 3}}}}
        training: {{epochs: 6, device: cpu}}
    """
    (tmp_path / "recipe.yaml").write_text(text)
    return tmp_path / "recipe.yaml"


@pytest.fixture
def work(recipe):
    draft = draft_recipe(recipe)
    bags, folds = read_data(draft.recipe().data)
    fold = replace(folds[0], test=())
    return TrialWork(draft, bags.only((*fold.train, *fold.val)), [fold], "nll")


VALUES = {"training.learning_rate": 0.01, "model.settings.hidden_dim": 8}


def loss_of(recipe, bags, fold):
    """Train outside of a search, and measure by scikit-learn."""
    model = fit(
        bags.subset(fold.train),
        val=bags.subset(fold.val),
        model=recipe.model.name,
        model_settings=recipe.model.settings,
        training=recipe.training,
    )
    table = predict(model, bags.subset(fold.val), warn=False)
    return log_loss(table.labels, table.probs)


def test_a_trial_reports_what_a_training_of_its_recipe_gives(work, tmp_path):
    reports = []
    work()(VALUES, tmp_path / "trial", reports.append)
    assert [one.step for one in reports] == list(range(1, 7))
    recipe = work.draft.with_values(VALUES).recipe()
    assert recipe.model.settings["hidden_dim"] == 8
    expected = loss_of(recipe, work.bags, work.folds[0])
    assert reports[-1].loss == pytest.approx(expected, abs=1e-6)
    assert reports[0].loss != pytest.approx(expected, abs=1e-6)


def test_a_trial_that_was_stopped_goes_on_from_its_checkpoint(work, tmp_path):
    whole, before, after = [], [], []
    work.run(VALUES, tmp_path / "whole", whole.append)

    def stop(progress):
        before.append(progress)
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.run(VALUES, tmp_path / "stopped", stop)
    work.run(VALUES, tmp_path / "stopped", after.append)
    assert before + after == whole
    again = []
    work.run(VALUES, tmp_path / "stopped", again.append)  # it had ended, and reports so
    assert again == whole[-1:]


def test_several_folds_are_averaged_and_the_best_epoch_counts_where_it_predicts(work, tmp_path):
    fold = work.folds[0]
    other = Fold("other", fold.train[5:], (*fold.val, *fold.train[:5]), ())
    best = {**VALUES, "training.select": "best", "training.learning_rate": 0.5}
    several, reports, alone = replace(work, folds=[fold, other]), [], []
    several.run(best, tmp_path / "several", reports.append)
    losses = [loss_of(work.draft.with_values(best).recipe(), work.bags, f) for f in (fold, other)]
    assert [one.step for one in reports] == [1, 2]
    assert reports[0].loss == pytest.approx(losses[0], abs=1e-6)
    assert reports[1].loss == pytest.approx(np.mean(losses), abs=1e-6)
    work.run(best, tmp_path / "alone", alone.append)
    assert alone[-1].loss == pytest.approx(losses[0], abs=1e-6)


def test_a_trial_that_cannot_be_trained_fails_alone(work, tmp_path):
    reports = []
    work.run({"training.learning_rate": 1e30}, tmp_path / "a", reports.append)
    work.run({"training.bags_per_step": 0}, tmp_path / "b", reports.append)
    assert np.isinf([one.loss for one in reports if one.error]).all()
    assert "bags_per_step" in reports[-1].error
    assert any("finite" in one.error for one in reports)


def test_the_bags_of_a_trial_have_no_others(work):
    bags, folds = read_data(work.draft.recipe().data)
    test = folds[0].test[0]
    assert test in bags.slide_ids
    for method in (work.bags.source.read, work.bags.source.header, work.bags.source.stamp):
        with pytest.raises(BagError, match=f"but got '{test}'"):
            method(test)
    with pytest.raises(BagError):
        work.bags.subset([test])


def test_a_space_comes_from_the_shell_or_a_file(tmp_path):
    (tmp_path / "space.yaml").write_text(
        "model.settings.num-inducing: [16, 32]\ntraining.epochs: 1..9"
    )
    found = read_space((str(tmp_path / "space.yaml"), "training.learning-rate=1e-5..1e-2:log"))
    assert [one.key for one in found] == [
        *("model.settings.num_inducing", "training.epochs", "training.learning_rate")
    ]
    assert found[0] == Dimension("model.settings.num_inducing", choices=(16, 32))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"space": ("data.folds=2,3",)}, SettingsError, "model or training to search"),
        ({"space": ("training.epochs=1..3",) * 2}, SettingsError, "once, but got training.epochs"),
        ({"space": ("nowhere.yaml",)}, SettingsError, "but got 'nowhere.yaml'"),
        ({"space": ("training.epoch=1..3",)}, SettingsError, r"With training\.epoch = 1 of the"),
        ({"space": ("training.epochs=0..3",)}, SettingsError, r"With training\.epochs = 0"),
        ({"metric": "kappa"}, SettingsError, "among balanced_accuracy.* got 'kappa'"),
        ({"fold": ("9",)}, SplitError, "among 0, 1, 2, 3, but got 9"),
        ({"fold": ("0", "1", "2", "3")}, SplitError, "Choose one `fold`"),
        ({"trials": 0}, SettingsError, "at least one trial"),
        ({"on": "slurm"}, SettingsError, "but got 'slurm'"),
        ({"resume": True, "overwrite": True}, SettingsError, "got both"),
    ],
)
def test_what_cannot_be_searched_is_refused(recipe, tmp_path, given, error, message):
    pytest.importorskip("ray")
    start = {"recipe": recipe, "space": ("training.epochs=1..3",), "out": tmp_path / "tuned"}
    with pytest.raises(error, match=message):
        tune(TuneOptions(**(start | given)))
    assert not (tmp_path / "tuned").exists()


def test_a_place_without_room_replaces_no_search(recipe, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from sgpmil.scaleout.ray_cluster import RayExecutor

    def refuse(executor):
        assert (executor.address, executor.gpus) == ("local", 5)
        raise ClusterError("Expected a machine.")

    monkeypatch.setattr(RayExecutor, "require_room", refuse)
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned/tune.json").write_text("{}")
    options = TuneOptions(
        recipe=recipe,
        space=("training.epochs=1..3",),
        out=tmp_path / "tuned",
        gpus_per_job=5.0,
        overwrite=True,
    )
    with pytest.raises(ClusterError):
        tune(options)
    assert (tmp_path / "tuned/tune.json").exists()
    with pytest.raises(SettingsError, match="under the same path"):
        tune(replace(options, shared_folder=False))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_search_on_a_cluster_ends_with_a_recipe_without_reading_test_slides(
    cluster, recipe, tmp_path
):
    options = TuneOptions(
        recipe=recipe,
        space=("training.learning_rate=1e-4..1e-1:log", "model.settings.hidden_dim=4,8"),
        out=tmp_path / "tuned",
        trials=4,
        on="ray",
    )
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "features", kept)
    bags, folds = read_data(load_recipe(recipe).data)
    fold = folds[0]

    def hide(*_):
        for slide in fold.test:
            (tmp_path / f"features/{slide}.npy").unlink()

    found = tune(options, on_data=hide)
    assert (found.num_slides, found.num_hidden) == (30, 10)
    assert found.spoilt == ("1", "2", "3")
    shutil.copytree(kept, tmp_path / "features", dirs_exist_ok=True)
    table = pd.read_csv(found.table, float_precision="round_trip")
    assert len(table) == 4
    assert table["val_nll"].is_monotonic_increasing
    assert table["steps"].max() == 6
    assert table["model.settings.hidden_dim"].isin([4, 8]).all()
    assert table["training.learning_rate"].between(1e-4, 1e-1).all()
    tuned = load_recipe(found.path)
    assert tuned.training.learning_rate == table["training.learning_rate"][0]
    assert loss_of(tuned, bags, fold) == pytest.approx(table["val_nll"][0], abs=1e-6)
    assert not list((tmp_path / "tuned").glob("trials/*"))
    with pytest.raises(RunFolderError, match="holds a search already"):
        tune(options)
    with pytest.raises(RunFolderError, match="but space is another"):
        tune(replace(options, space=options.space[:1], resume=True))
    before = found.path.read_text()
    assert tune(replace(options, resume=True)).path.read_text() == before  # nothing is left to do
