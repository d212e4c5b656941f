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
    "sgpmil.bags.readers",
    "sgpmil.evaluation",
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
    assert set(package.__all__) <= names
    assert names <= set(dir(package))


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
    "module", ["sgpmil.__main__", "sgpmil.slides.extraction.tile_workers", "sgpmil.slides.phantoms"]
)
def test_what_a_reading_or_painting_process_imports_is_light(module):
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert module in loaded
    assert loaded.isdisjoint({"torch", "scipy", "sklearn", "pandas", "matplotlib", "lightning"})
