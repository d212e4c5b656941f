import json
from dataclasses import replace

import pytest
import torch

import sgpmil.experiments.model_study as model_study
import sgpmil.experiments.model_study as model_timing
from sgpmil.errors import BagError, RunFolderError, SettingsError, TrainingError
from sgpmil.experiments.model_study import (
    ADJUSTMENTS,
    MODEL_SETS,
    Adjustment,
    choose_models,
    choose_sets,
    model_variant,
    plan_model_study,
    plan_timing,
    time_models,
)
from sgpmil.models.registry import list_models, resolve_settings
from sgpmil.runs.run import run_lock
from sgpmil.training.settings import default_training
from tests.experiments.tiny_data import write_classic, write_colon, write_mnist


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_colon(folder / "colon")
    write_classic(folder / "classic_mil" / "musk1.npz")
    return folder


def test_sets_are_those_that_are_there_in_the_studys_order(data):
    assert choose_sets(data) == ["colon", "musk1"]
    assert choose_sets(data, ["musk1", "colon"]) == ["colon", "musk1"]
    assert choose_sets(data, ["musk1"]) == ["musk1"]


def test_unknown_and_missing_sets_are_named(data, tmp_path):
    with pytest.raises(SettingsError, match="'musk9'"):
        choose_sets(data, ["musk9"])
    with pytest.raises(BagError, match=r"'mnist' at .*mnist, but there is none"):
        choose_sets(data, ["colon", "mnist"])
    with pytest.raises(BagError, match="nowhere"):
        choose_sets(tmp_path / "nowhere")
    with pytest.raises(BagError, match="colon"):
        choose_sets(tmp_path)


def test_models_are_all_or_those_asked_for():
    assert choose_models() == list_models()
    assert choose_models(["mean-pool", "abmil"]) == ["abmil", "mean-pool"]
    with pytest.raises(SettingsError, match="'abmill'"):
        choose_models(["abmill"])


@pytest.fixture
def adjusted(monkeypatch):
    """Replace the study's adjustments."""

    def give(*adjustments):
        monkeypatch.setattr(model_study, "ADJUSTMENTS", adjustments)

    return give


def test_models_are_their_own_where_nothing_is_adjusted(adjusted):
    adjusted(Adjustment("why", sets=("fox",), settings={"standardise": False}))
    for model in list_models():
        for data_set in MODEL_SETS:
            variant = model_variant(model, data_set)
            changed = {"standardise": False} if data_set == "fox" else {}
            assert (dict(variant.settings), dict(variant.training)) == (changed, {})


def test_adjustments_are_of_the_models_they_name(adjusted):
    adjusted(
        Adjustment("a", sets=("fox",), without=("abmil",), training={"bags_per_step": 3}),
        Adjustment("b", sets=("fox",), models=("abmil",), settings={"hidden_dim": 7}),
    )
    assert dict(model_variant("abmil", "fox").training) == {}
    assert dict(model_variant("abmil", "fox").settings) == {"hidden_dim": 7}
    assert dict(model_variant("sgpmil", "fox").training) == {"bags_per_step": 3}
    assert dict(model_variant("sgpmil", "fox").settings) == {}


def test_every_model_can_be_built_as_it_is_adjusted():
    for model in list_models():
        for data_set in MODEL_SETS:
            variant = model_variant(model, data_set)
            resolve_settings(model, variant.settings)
            replace(default_training(model), **variant.training)


def test_images_are_read_by_the_network_and_not_standardised():
    for model in list_models():
        settings = resolve_settings(model, model_variant(model, "mnist").settings)
        assert settings.encoder == ("none" if model == "bag-size" else "digit-cnn")
        assert not settings.standardise


def test_a_cap_on_epochs_lowers_and_never_raises(adjusted):
    adjusted(Adjustment("why", sets=("fox",), max_epochs=25))
    for model in list_models():
        own = default_training(model).epochs
        assert model_variant(model, "fox").training["epochs"] == min(own, 25)
        assert model_variant(model, "fox", epochs=35).training["epochs"] == 35


def test_every_adjustment_has_a_reason_and_known_names():
    for adjustment in ADJUSTMENTS:
        assert adjustment.reason
        assert set(adjustment.sets) <= MODEL_SETS.keys()
        assert {*adjustment.models, *adjustment.without} <= set(list_models())
        assert adjustment.settings or adjustment.training or adjustment.max_epochs


def test_a_plan_is_set_by_set_with_each_sets_own_seeds(data):
    jobs = plan_model_study(data, ["colon", "musk1"], ["bag-size", "abmil"])
    keys = [job.file.key for job in jobs]
    assert len(keys) == 2 * (2 * 3 + 10 * 1)
    assert keys[:5] == [
        "colon/bag-size/0-seed0",
        "colon/bag-size/1-seed0",
        "colon/abmil/0-seed0",
        "colon/abmil/1-seed0",
        "colon/bag-size/0-seed1",
    ]
    assert len(plan_model_study(data, ["musk1"], ["abmil"], seeds=2)) == 20


def test_timing_takes_one_fold_of_each_set(data):
    jobs = plan_timing(data, ["colon", "musk1"], ["bag-size", "abmil"])
    assert [job.file.key for job in jobs] == [
        f"{data_set}/{model}/0-seed0"
        for data_set in ("colon", "musk1")
        for model in ("bag-size", "abmil")
    ]


def test_seeds_share_the_bags(tmp_path):
    write_mnist(tmp_path / "mnist", num_train=12000, num_test=10000)
    jobs = plan_model_study(tmp_path, ["mnist"], ["bag-size"])
    assert [job.training.seed for job in jobs] == [0, 1, 2]
    assert len({job.fingerprint for job in jobs}) == 1


@pytest.fixture
def jobs(tmp_path):
    write_classic(tmp_path / "data" / "classic_mil" / "musk1.npz")
    return plan_timing(tmp_path / "data", ["musk1"], ["bag-size", "dsmil"])


@pytest.fixture
def clock(monkeypatch):
    """Let the epochs of every fit end at the times given, without training."""

    def give(*ends, fails=()):
        def fit(train, *, model, model_settings, training, on_epoch):
            assert torch.get_num_threads() == 1
            assert training.epochs == len(ends)
            assert (training.select, training.patience) == ("last", 0)
            if model in fails:
                raise TrainingError("The loss is not finite.")
            for end in ends:
                monkeypatch.setattr(model_timing.time, "perf_counter", lambda end=end: end)
                on_epoch({})

        monkeypatch.setattr(model_timing, "fit", fit)

    return give


def timed(jobs, out):
    started, done = [], []
    found = time_models(
        jobs, out, on_start=started.append, on_done=lambda key, error: done.append((key, error))
    )
    assert started == [key for key, _ in done] == [job.file.key for job in jobs]
    return found


def test_the_median_of_three_epochs_after_the_first(jobs, tmp_path, clock):
    clock(100.0, 102.0, 105.0, 114.0)
    assert [found.seconds for found in timed(jobs, tmp_path / "out")] == [3.0, 3.0]
    written = json.loads((tmp_path / "out/timing.json").read_text())["musk1"]["dsmil"]
    assert written["seconds_per_epoch"] == 3.0
    assert written["device"] in ("cpu", "cuda")
    assert written["bags"] == len(jobs[0].data_set.load()[1][0].train)


def test_a_failure_is_told_and_other_times_stay(jobs, tmp_path, clock):
    out = tmp_path / "out"
    clock(0.0, 1.0, 2.0, 3.0)
    timed(jobs, out)
    clock(0.0, 2.0, 4.0, 6.0, fails=("bag-size",))
    failed, found = timed(jobs, out)
    assert (failed.seconds, failed.error) == (None, "The loss is not finite.")
    assert found.seconds == 2.0
    written = json.loads((out / "timing.json").read_text())["musk1"]
    assert {model: w["seconds_per_epoch"] for model, w in written.items()} == {
        "bag-size": 1.0,
        "dsmil": 2.0,
    }


def test_nothing_is_timed_beside_a_running_study(jobs, tmp_path):
    with run_lock(tmp_path / "out"), pytest.raises(RunFolderError, match="Another process"):
        timed(jobs, tmp_path / "out")


def test_real_epochs_take_time(jobs, tmp_path):
    (found,) = timed(jobs[:1], tmp_path / "out")
    assert 0 < found.seconds < 60
