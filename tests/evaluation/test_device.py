import pytest
import torch

from sgpmil.errors import SettingsError
from sgpmil.evaluation.device import compute_device


def test_the_gpu_is_taken_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert compute_device().type == "cuda"
    assert compute_device("gpu").type == "cuda"
    assert compute_device("cpu").type == "cpu"


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compute_device().type == "cpu"
    with pytest.raises(SettingsError, match="found none"):
        compute_device("gpu")
    with pytest.raises(SettingsError, match="tpu"):
        compute_device("tpu")
