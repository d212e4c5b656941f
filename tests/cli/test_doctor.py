from types import SimpleNamespace

from sgpmil import installation
from sgpmil.installation import OptionalPart


def test_the_doctor_ends_with_what_to_do(sgpmil, monkeypatch):
    part = OptionalPart("slides", "read slide files", ("no_such_module",), "sgpmil.slides")
    found = installation.Installation((("python", "3.12"),), (), (part,), ("Do this.", "B."))
    monkeypatch.setattr("sgpmil.cli.doctor.inspect_installation", lambda: found)
    of_an_index = SimpleNamespace(read_text=lambda _: None)
    monkeypatch.setattr(installation, "distribution", lambda _: of_an_index)
    code, out, _ = sgpmil("doctor")
    assert code == 1
    assert out.splitlines()[-2:] == ["To do: Do this.", "Then: B."]
    assert "not installed: pip install 'sgpmil[slides]'" in out
    right = installation.Installation(found.versions, (), (), ())
    monkeypatch.setattr("sgpmil.cli.doctor.inspect_installation", lambda: right)
    code, out, _ = sgpmil("doctor")
    assert (code, out.splitlines()[-1]) == (0, "All right.")
