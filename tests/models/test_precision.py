import pytest
import torch

from sgpmil.errors import SettingsError
from sgpmil.models.precision import (
    PRECISIONS,
    dense_arithmetic,
    features_dtype,
    resolve_precision,
)

from .small import small_model

CPU = torch.device("cpu")


def test_auto_is_single_precision_on_a_cpu():
    assert resolve_precision("auto", CPU) == "32"


@pytest.mark.parametrize("name", [p for p in PRECISIONS if p != "auto"])
def test_what_is_asked_for_is_kept(name):
    assert resolve_precision(name, CPU) == name


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), "bf16"), ((7, 5), "32")])
def test_auto_is_bfloat16_on_gpus_that_have_it(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision("auto", torch.device("cuda")) == expected


def test_an_unknown_precision_is_refused():
    with pytest.raises(SettingsError, match="one of auto, 32, 64, bf16, 16, but got 'half'"):
        resolve_precision("half", CPU)


@pytest.mark.parametrize(
    ("name", "dtype"), [("32", torch.float32), ("64", torch.float32), ("bf16", torch.bfloat16)]
)
def test_dense_layers_are_computed_in_it(name, dtype):
    with dense_arithmetic(name, CPU):
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == dtype


@pytest.mark.parametrize(
    ("name", "precision", "dtype"),
    [
        ("sgpmil", "bf16", torch.bfloat16),
        ("sgpmil", "32", torch.float32),
        ("dsmil", "bf16", torch.float32),  # pools the features themselves
    ],
)
def test_features_are_in_half_precision_for_layers_of_instances_alone(name, precision, dtype):
    assert features_dtype(small_model(name), precision) == dtype
