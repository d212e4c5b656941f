import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch

from sgpmil import torchvision_import

pytestmark = pytest.mark.slow

FAKE = """
    import torch
    from torchvision import operators

    @torch.library.register_fake("torchvision::nms")
    def meta_nms(dets, scores, iou_threshold):
        return dets.new_empty(0)
"""


def in_new_process(code, path):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": str(path), "PATH": ""},
        capture_output=True,
        text=True,
    )


def fake_torchvision(tmp_path, text):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(textwrap.dedent(text))
    (package / "operators.py").write_text("")


def test_operators_that_cannot_be_loaded_are_declared(tmp_path):
    fake_torchvision(tmp_path, FAKE)
    plain = in_new_process("import torchvision", tmp_path)
    assert "operator torchvision::nms does not exist" in plain.stderr
    repaired = in_new_process(
        """
        from sgpmil.torchvision_import import mend_torchvision
        mend_torchvision()
        import torchvision
        print(torchvision.meta_nms.__name__)
        """,
        tmp_path,
    )
    assert repaired.stdout == "meta_nms\n", repaired.stderr


def test_operators_that_can_be_loaded_are_not_declared(tmp_path, monkeypatch):
    loaded = []
    (tmp_path / "_C.so").touch()
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(torchvision_import, "find_spec", lambda _: found)
    monkeypatch.setattr(torchvision_import, "_declared", [])
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    torchvision_import.mend_torchvision()
    assert loaded == [tmp_path / "_C.so"]
    assert torchvision_import._declared == []


def test_operators_that_are_declared_already_are_left_alone(monkeypatch):
    monkeypatch.setattr(torchvision_import, "_declared", [])
    for _ in range(2):
        torchvision_import._declare_operators()  # twice the same raises
    assert hasattr(torch.ops.torchvision, "nms")


def test_training_imports_beside_the_torchvision_that_is_installed(tmp_path):
    code = """
        import sys
        from sgpmil.torchvision_import import mend_torchvision
        mend_torchvision()
        print("torchvision" in sys.modules)
        import sgpmil.training.fit
    """
    found = in_new_process(code, tmp_path)
    assert (found.stdout, found.returncode) == ("False\n", 0), found.stderr


def test_the_training_room_is_imported_without_fabric(tmp_path):
    code = "import sys, sgpmil.training.cross_validation; print('lightning_fabric' in sys.modules)"
    assert in_new_process(code, tmp_path).stdout == "False\n"
