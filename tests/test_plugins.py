"""Plug-ins are found by the entry points of installed packages."""

import warnings

import pytest
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.errors import SettingsError
from sgpmil.models import build_model, list_models, registry
from sgpmil.plugins import PluginWarning, load_plugins

MODEL = """
from torch import nn
from sgpmil.models import MILModel, ModelOutput, ModelSettings, register

@register("first-instance", training={"epochs": 3})
class FirstInstance(MILModel):
    settings: ModelSettings

    def __init__(self, in_dim, num_outputs, settings):
        super().__init__(in_dim, num_outputs, settings)
        self.classifier = nn.Linear(in_dim, num_outputs)

    def forward(self, batch):
        first = batch.features[batch.offsets[:-1]]
        attention = batch.features.new_ones(1, len(batch.features))
        return ModelOutput(self.classifier(first).unsqueeze(1), attention)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package with one module and one entry point."""
    for name in registry.list_models():  # those that a test imports first must outlast it
        registry.find_model(name)
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    load_plugins.cache_clear()

    def installed(package, source, group):
        (tmp_path / f"{package}.py").write_text(source)
        about = tmp_path / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{group}]\n{package} = {package}\n")
        monkeypatch.syspath_prepend(tmp_path)

    yield installed
    load_plugins.cache_clear()


def test_a_model_of_another_package_is_found_by_name(install):
    assert "first-instance" not in list_models()
    load_plugins.cache_clear()
    install("plugin_of_models", MODEL, "sgpmil.models")
    assert "first-instance" in list_models()
    model = build_model("first-instance", in_dim=2, num_classes=3)
    bag = Bag(features=torch.ones(4, 2), slide_id="a", label=0)
    assert model(BagBatch.pack([bag])).logits.shape == (1, 1, 3)
    assert registry.find_model("first-instance").training == {"epochs": 3}


def test_a_model_of_a_plugin_is_found_before_models_are_listed(install):
    install("another_plugin_of_models", MODEL, "sgpmil.models")
    assert build_model("first-instance", in_dim=2, num_classes=2).name == "first-instance"


def test_an_encoder_of_another_package_is_imported(install):
    install("plugin_of_encoders", "names = ['my-encoder']\n", "sgpmil.encoders")
    assert load_plugins("sgpmil.encoders") == ("plugin_of_encoders",)
    assert load_plugins("sgpmil.models") == ()


def test_a_plugin_that_cannot_be_imported_is_left_out_with_a_warning(install):
    install("broken_plugin", "raise RuntimeError('No licence.')", "sgpmil.models")
    with pytest.warns(PluginWarning, match=r"Left out the plug-in 'broken_plugin'.*No licence\)"):
        assert "sgpmil" in list_models()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list_models()  # it warns once


def test_a_plugin_cannot_take_the_name_of_another_model(install):
    install("taking_plugin", MODEL.replace("first-instance", "sgpmil"), "sgpmil.models")
    with pytest.warns(PluginWarning, match="'sgpmil' is registered for sgpmil.models.sgpmil"):
        list_models()
    with pytest.raises(SettingsError, match="Expected a model among"):
        build_model("first-instance", in_dim=2, num_classes=2)
