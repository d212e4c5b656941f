from types import SimpleNamespace

from sgpmil import installation
from sgpmil.installation import OptionalPart
from sgpmil.viewer.vendor import OPENSEADRAGON


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


def test_a_viewer_without_openseadragon_is_incomplete(sgpmil, monkeypatch, tmp_path):
    places = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    found = installation.find_spec

    def spec(name):
        return places if name == "sgpmil.viewer" else found(name)

    monkeypatch.setattr(installation, "find_spec", spec)
    code, out, _ = sgpmil("doctor")
    assert code == 1
    assert "incomplete (OpenSeadragon missing): python -m sgpmil.viewer.vendor" in out
    assert "The viewer lacks OpenSeadragon, which npm (Node.js) fetches." in out
    script = tmp_path / "static" / "vendor" / OPENSEADRAGON.file
    script.parent.mkdir(parents=True)
    script.touch()
    assert "OpenSeadragon" not in sgpmil("doctor")[1]
