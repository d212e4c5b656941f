import sys

import pytest
import torch

from sgpmil.gpu.programs import is_available, runs_triton


@pytest.fixture
def available():
    is_available.cache_clear()
    yield is_available
    is_available.cache_clear()


def test_without_a_compiler_nothing_is_launched(available, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not available()


def test_a_compiler_may_be_named(available, monkeypatch):
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setitem(sys.modules, "triton", sys)  # any module stands for it
    assert available()


def test_without_triton_nothing_is_launched(available, monkeypatch):
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not available()


def test_a_tensor_in_main_memory_is_for_torch():
    assert not runs_triton(torch.ones(2))
