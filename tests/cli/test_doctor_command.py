import torch

from sgpmil.cli import doctor_command


def test_versions_and_parts(sgpmil, monkeypatch):
    installed = {"tensorboard"}
    monkeypatch.setattr(doctor_command, "find_spec", lambda name: name in installed or None)
    code, out, _ = sgpmil("doctor")
    assert code == 0
    assert torch.__version__ in out
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if "│" in line}
    assert rows["TensorBoard"].split("│")[2].strip() == "installed"
    assert 'not installed: pip install "sgpmil[slides]"' in rows["slides (read slide files)"]
