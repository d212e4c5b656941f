import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from sgpmil import installation
from sgpmil.installation import OptionalPart, inspect_installation, install_command


def installed_from(monkeypatch, source):
    text = None if source is None else json.dumps(source)
    found = SimpleNamespace(read_text=lambda name: text if name == "direct_url.json" else None)
    monkeypatch.setattr(installation, "distribution", lambda _: found)


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (None, "pip install 'sgpmil[slides]'"),
        ({"url": "file:///opt/a", "dir_info": {}}, "pip install '/opt/a[slides]'"),
        (
            {"url": "file:///opt/my%20code", "dir_info": {"editable": True}},
            "pip install -e '/opt/my code[slides]'",
        ),
        (
            {"url": "https://a.org/b.git", "vcs_info": {"vcs": "git"}},
            "pip install 'sgpmil[slides] @ git+https://a.org/b.git'",
        ),
        (
            {"url": "https://a.org/sgpmil.whl", "archive_info": {}},
            "pip install 'sgpmil[slides] @ https://a.org/sgpmil.whl'",
        ),
    ],
)
def test_a_part_is_installed_from_where_the_package_came(monkeypatch, source, command):
    installed_from(monkeypatch, source)
    assert install_command("slides") == command


def test_only_parts_that_exist_are_offered():
    gone = OptionalPart("a", "fly", ("json",), "sgpmil.no_such_room")
    there = OptionalPart("b", "walk", ("json", "no_such_module"), "sgpmil.bags")
    assert not gone.exists
    assert there.exists
    assert there.missing == ("no_such_module",)
    assert all(part.exists for part in inspect_installation().parts)


@pytest.fixture
def healthy(monkeypatch):
    """A machine without a GPU, and with disk."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**11))


@pytest.mark.usefixtures("healthy")
def test_all_is_right(tmp_path):
    found = inspect_installation(tmp_path)
    assert found.problems == ()
    assert dict(found.versions)["torch"] == torch.__version__
    assert dict(found.machine)["disk"] == f"100.0 GB free at {tmp_path}"


@pytest.mark.usefixtures("healthy")
def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert inspect_installation(tmp_path).problems[0].startswith("Only 1.0 GB are free at")


@pytest.mark.usefixtures("healthy")
def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(installation.os, "access", lambda *_: False)
    assert f"Nothing can be written to {tmp_path}" in inspect_installation(tmp_path).problems[0]


@pytest.mark.usefixtures("healthy")
def test_a_driver_that_torch_cannot_use(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    assert "cannot use a GPU" in inspect_installation(tmp_path).problems[0]


@pytest.mark.usefixtures("healthy")
def test_a_gpu_that_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    free = {0: 10**9, 1: 140 * 10**9}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda n: (free[n], 141 * 10**9))
    found = inspect_installation(tmp_path)
    assert "H200, 140.0 GB of 141.0 GB free" in dict(found.machine)["GPU"]
    (problem,) = found.problems
    assert problem.startswith("Only 1.0 GB of GPU 0 are free")


@pytest.mark.usefixtures("healthy")
def test_a_package_that_is_missing(tmp_path, monkeypatch):
    needed = ["no-such-package[all]>=2", "numpy>=1.26", "absent; extra == 'dev'"]
    monkeypatch.setattr(installation, "requires", lambda _: needed)
    (problem,) = inspect_installation(tmp_path).problems
    assert problem.endswith("Run: pip install no-such-package")
