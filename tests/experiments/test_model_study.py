from dataclasses import replace

import pytest

import sgpmil.experiments.model_study as model_study
from sgpmil.errors import BagError, SettingsError
from sgpmil.experiments.model_study import (
    ADJUSTMENTS,
    MODEL_SETS,
    Adjustment,
    choose_models,
    choose_sets,
    model_variant,
    plan_model_study,
    plan_timing,
)
from sgpmil.models.registry import list_models, resolve_settings
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
