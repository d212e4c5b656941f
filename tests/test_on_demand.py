import ast
import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = [
    "sgpmil",
    "sgpmil.bags",
    "sgpmil.evaluation",
    "sgpmil.explanation",
    "sgpmil.models",
    "sgpmil.report",
    "sgpmil.runs",
    "sgpmil.slides.extraction",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_names_are_where_type_checkers_are_told(name):
    package = import_module(name)
    tree = ast.parse(Path(package.__file__).read_text())
    (told,) = (node for node in tree.body if isinstance(node, ast.If))
    for line in told.body:
        for known in line.names:
            assert getattr(package, known.name) is getattr(import_module(line.module), known.name)
    names = {known.name for line in told.body for known in line.names}
    (call,) = (line.value for line in told.orelse)
    table = ast.literal_eval(call.args[1])
    homes = [name for found in table.values() for name in found.split()]
    own = {"BUILT_IN"}  # defined in the package itself
    assert sorted(homes) == sorted(set(package.__all__) - own)
    assert set(homes) <= names


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A package of two modules, of which nothing has been asked yet."""
    folder = tmp_path / "made_on_demand"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from sgpmil.on_demand import names_on_demand\n"
        "__getattr__, __dir__ = names_on_demand(__name__, {'home': 'thing'})\n"
    )
    (folder / "home.py").write_text("thing = object()\n")
    (folder / "_hidden.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("made_on_demand")
    for name in [name for name in sys.modules if name.startswith("made_on_demand")]:
        del sys.modules[name]


def test_names_are_listed_before_they_are_imported(made):
    assert {"thing", "home"} <= set(dir(made))
    assert "_hidden" not in dir(made)
    assert "made_on_demand.home" not in sys.modules


def test_a_name_is_looked_up_once(made):
    first = made.thing
    assert vars(made)["thing"] is first is sys.modules["made_on_demand.home"].thing


def test_modules_are_names_too(made):
    assert made.home.__name__ == "made_on_demand.home"
    with pytest.raises(AttributeError, match="no attribute '_hidden'"):
        _ = made._hidden


@pytest.mark.parametrize("name", PACKAGES)
def test_no_name_is_hidden_by_a_module(name):
    package = import_module(name)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules.isdisjoint(package.__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_unknown_names_are_refused(name):
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = import_module(name).nothing


@pytest.mark.parametrize(
    "module", ["sgpmil.__main__", "sgpmil.slides.extraction.tile_workers", "sgpmil.phantoms"]
)
def test_what_a_reading_or_painting_process_imports_is_light(module):
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert module in loaded
    assert loaded.isdisjoint(
        {"torch", "scipy", "sklearn", "pandas", "matplotlib", "lightning_fabric"}
    )
