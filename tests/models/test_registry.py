from dataclasses import asdict

import pytest

from sgpmil.errors import SettingsError
from sgpmil.models import BUILT_IN, registry
from sgpmil.models.abmil import ABMIL
from sgpmil.models.registry import (
    build_model,
    checked_value,
    find_model,
    list_models,
    resolve_settings,
)
from sgpmil.models.sgpmil import SGPMIL

PAPER = {
    "hidden_dims": (768, 384, 256),
    "gp_dim": 64,
    "num_inducing": 80,
    "num_samples": 30,
    "kernel": "rbf",
    "mean": "linear",
    "mean_scale": 1.0,
    "mean_bias": None,
    "activation": "sigmoid",
    "pooling": "sum",
    "sampling": "independent",
    "likelihood": "mean_log_prob",
    "inducing_start": "uniform",
    "lengthscale_start": "log2",
    "standardise": False,
    "encoder": "none",
    "jitter": 1e-4,
    "kl_factor": 1.0,
    "kl_bags": 1,
    "noise_seed": 0,
    "inducing": "points",
    "renewals": (0.25, 0.5, 0.7),  # of inducing patches alone
    "inputs": "sigmoid",
    "preserved_dim": 0,
    "preserved_weight": 1.0,
    "outputscale": None,
    "variational_rate": 1.0,
    "prediction_samples": 0,
    "prediction_error": 0.0,
    "scores": "samples",
    "classifier_scale": None,
    "classifier_kl": 0.3,  # of an uncertain classifier alone
    "linear_scale": None,
    "feature_dropout": 0.0,
}
RELEASED = {**PAPER, "sampling": "shared", "likelihood": "mean_logits"}


def test_models_are_listed_in_order():
    assert list_models() == sorted(list_models())
    assert set(list_models()) == {
        "abmil",
        "agp",
        "bag-size",
        "bayesmil",
        "clam-mb",
        "clam-sb",
        "dgrmil",
        "dsmil",
        "kernel-attention",
        "max-pool",
        "mean-pool",
        "mixmil",
        "sgpmil",
        "transmil",
    }


@pytest.mark.parametrize(("preset", "expected"), [("paper", PAPER), ("released", RELEASED)])
def test_presets_of_sgpmil_are_the_documented(preset, expected):
    assert asdict(resolve_settings("sgpmil", {"preset": preset})) == expected


def test_agp_is_sgpmil_with_other_settings():
    model = build_model("agp", in_dim=3, num_classes=2, hidden_dims=(4,))
    assert type(model) is SGPMIL
    assert model.name == "agp"
    settings = model.settings
    assert (settings.mean, settings.activation, settings.sampling) == (
        "constant",
        "softmax",
        "full",
    )
    assert (settings.likelihood, settings.jitter) == ("log_mean_prob", 1e-3)
    released = resolve_settings("agp", {"preset": "released"})
    assert (released.likelihood, released.sampling) == ("mean_logits", "full")
    assert (released.inducing_start, released.lengthscale_start) == ("uniform", "log2")


def test_settings_replace_those_of_the_preset():
    settings = resolve_settings("sgpmil", {"preset": "paper", "num_inducing": 16})
    assert asdict(settings) == {**PAPER, "num_inducing": 16}
    assert resolve_settings("sgpmil", {"preset": "default"}) == find_model("sgpmil").default


def test_lists_of_a_file_become_tuples():
    settings = resolve_settings("sgpmil", {"hidden_dims": [5, 4]})
    assert settings.hidden_dims == (5, 4)


def test_name_is_of_the_object_and_not_of_the_class():
    first = build_model("sgpmil", in_dim=3, num_classes=2, hidden_dims=(4,))
    build_model("agp", in_dim=3, num_classes=2, hidden_dims=(4,))
    assert first.name == "sgpmil"
    assert SGPMIL.name == ABMIL.name == ""


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "sgpmill",
            {},
            r"model among abmil, .* but got 'sgpmill'.*mean 'sgpmil'\?",
        ),
        ("xyz", {}, r"but got 'xyz'\.$"),
        ("sgpmil", {"preset": "papper"}, r"preset of sgpmil among default, .*mean 'paper'\?"),
        ("abmil", {"preset": "paper"}, "preset of abmil among default, released"),
        ("sgpmil", {"num_inducng": 3}, r"setting of sgpmil .*mean 'num_inducing'\?"),
        ("abmil", {"num_inducing": 3}, "setting of abmil among standardise, encoder, hidden_dim"),
    ],
)
def test_unknown_names_suggest_the_known(name, settings, message):
    with pytest.raises(SettingsError, match=message):
        resolve_settings(name, settings)


@pytest.mark.parametrize(("in_dim", "num_classes"), [(0, 2), (4, 1), (-1, 2)])
def test_impossible_sizes(in_dim, num_classes):
    with pytest.raises(SettingsError, match="in_dim >= 1 and num_classes >= 2"):
        build_model("abmil", in_dim=in_dim, num_classes=num_classes)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("abmil", {"dropout": None}, "dropout to be a finite number, but got None"),
        ("sgpmil", {"jitter": float("nan")}, "jitter to be a finite number, but got nan"),
        ("dgrmil", {"diversity_weight": float("inf")}, "diversity_weight to be a finite number"),
        ("sgpmil", {"hidden_dims": (True,)}, "hidden_dims to be a list of whole numbers"),
        ("kernel-attention", {"residual_start": "one"}, "residual_start to be a finite number"),
    ],
)
def test_values_of_another_kind(name, settings, message):
    with pytest.raises(SettingsError, match=message):
        resolve_settings(name, settings)


def test_nothing_is_a_value_where_the_setting_knows_it():
    assert resolve_settings("sgpmil", {"mean_bias": None}).mean_bias is None


@pytest.mark.parametrize(
    ("value", "default", "found"),
    [
        (3, 7, 3),
        (True, False, True),
        (1, 0.5, 1.0),
        (2, None, 2),
        ([4, 2], (8,), (4, 2)),
        ([0.5, 0.9], (0.9, 0.999), (0.5, 0.9)),
        ("gelu", "relu", "gelu"),
    ],
)
def test_values_of_the_right_kind_pass(value, default, found):
    assert checked_value("x", value, default) == found
    assert type(checked_value("x", value, default)) is type(found)


@pytest.mark.parametrize(
    ("value", "default", "kind"),
    [
        (None, 7, "a whole number"),
        (True, 7, "a whole number"),
        (3.5, 7, "a whole number"),
        ("no", False, "yes or no"),
        (float("nan"), 0.5, "a finite number"),
        (float("inf"), None, "a finite number"),
        (16, (8,), "a list of whole numbers"),
        ([1.5], (8,), "a list of whole numbers"),
        (["a", 1], (0.9, 0.999), "a list of finite numbers"),
        (2, "relu", "a name"),
    ],
)
def test_values_of_another_kind_are_refused(value, default, kind):
    with pytest.raises(SettingsError, match=f"Expected x to be {kind}, but got"):
        checked_value("x", value, default)


@pytest.mark.parametrize("value", [10**30, -(10**30), [8, 2**63]])
def test_numbers_that_no_tensor_holds_are_refused(value):
    with pytest.raises(SettingsError, match="Expected x below 2"):
        checked_value("x", value, (8,) if isinstance(value, list) else 8)


def test_every_name_of_this_package_is_registered_where_it_says():
    for name, module in BUILT_IN.items():
        assert find_model(name).build.__module__ == module
    own = {n for n, e in registry._ENTRIES.items() if e.build.__module__.startswith("sgpmil.")}
    assert own == set(BUILT_IN)
