import subprocess
import sys
import textwrap

import pytest

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
    mended = in_new_process(
        """
        from sgpmil.torchvision_import import mend_torchvision
        mend_torchvision()
        import torchvision
        print(torchvision.meta_nms.__name__)
        """,
        tmp_path,
    )
    assert mended.stdout == "meta_nms\n", mended.stderr


def test_another_failure_is_not_hidden(tmp_path):
    fake_torchvision(tmp_path, "raise RuntimeError('no such library')")
    code = """
        from sgpmil.torchvision_import import mend_torchvision
        mend_torchvision()
        import torchvision
    """
    assert "no such library" in in_new_process(code, tmp_path).stderr


def test_operators_that_can_be_loaded_are_not_declared(tmp_path):
    fake_torchvision(tmp_path, "")
    (tmp_path / "torchvision" / "_C.so").touch()
    code = """
        import torch
        from sgpmil import torchvision_import
        torch.ops.load_library = lambda path: print(path.name)
        torchvision_import.mend_torchvision()
        print(torchvision_import._declared)
    """
    found = in_new_process(code, tmp_path)
    assert found.stdout == "_C.so\n[]\n", found.stderr


def test_mending_imports_nothing_and_can_be_done_again(tmp_path):
    code = """
        import sys
        from sgpmil.torchvision_import import mend_torchvision
        mend_torchvision()
        mend_torchvision()
        print("torchvision" in sys.modules)
        import torchvision.transforms
    """
    found = in_new_process(code, tmp_path)
    assert (found.stdout, found.returncode) == ("False\n", 0), found.stderr


def test_training_imports_beside_the_torchvision_that_is_installed(tmp_path):
    found = in_new_process("import sgpmil.training.fit", tmp_path)
    assert found.returncode == 0, found.stderr


def test_what_needs_no_lightning_does_not_wait_for_it(tmp_path):
    code = "import sys, sgpmil.report.material; print('lightning' in sys.modules)"
    assert in_new_process(code, tmp_path).stdout == "False\n"
