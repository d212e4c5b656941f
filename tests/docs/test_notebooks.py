"""Every notebook of the documentation runs, and its stored output is that of its code."""

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from sgpmil.models import registry

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/tutorials").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, capsys, monkeypatch):
    matplotlib.use("agg")
    known = set(registry.list_models())
    names = {"__name__": "__main__"}
    printed, stored = [], []
    try:
        for cell in cells(path):
            exec(compile("".join(cell["source"]), path.name, "exec"), names)  # noqa: S102
            printed += capsys.readouterr().out.splitlines()
            stored += [
                line
                for output in cell["outputs"]
                if output["output_type"] == "stream" and output["name"] == "stdout"
                for line in "".join(output["text"]).splitlines()
            ]
    finally:
        matplotlib.pyplot.close("all")
        for name in set(registry._ENTRIES) - known:
            del registry._ENTRIES[name]
    assert len(printed) == len(stored) > 0
    for now, then in zip(printed, stored, strict=True):
        # Sums in another order change the last digits on another processor.
        assert words(now) == words(then)
        np.testing.assert_allclose(numbers(now), numbers(then), atol=0.06)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_was_run_without_an_error_and_shows_a_figure(path):
    outputs = [output for cell in cells(path) for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in cells(path))
    assert not any(output["output_type"] == "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)


def cells(path):
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]


def numbers(line):
    return [float(w.strip("%,.")) / (100 if "%" in w else 1) for w in line.split() if is_number(w)]


def words(line):
    return [word for word in line.split() if not is_number(word)]


def is_number(word):
    return word.strip("%,").replace(".", "", 1).isdigit()
