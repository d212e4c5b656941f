from dataclasses import asdict
from pathlib import Path

import pytest

import sgpmil.experiments as experiments
from sgpmil.experiments.ablation_designs import ABLATIONS, AXES, BASES, PAPER_TRAINING
from sgpmil.experiments.recipe import read_yaml
from sgpmil.models.registry import resolve_settings
from sgpmil.training.settings import resolve_training


def settings_of(design):
    return vars(resolve_settings("sgpmil", design.settings))


def test_the_papers_training_is_that_of_its_recipe():
    recipe = read_yaml(Path(experiments.__file__).parent / "recipes/paper.yaml", "recipe")
    own = {key.replace("-", "_"): value for key, value in recipe["training"].items()}
    own = {key: float(v) if isinstance(v, str) and "e" in v[1:3] else v for key, v in own.items()}
    assert asdict(resolve_training("sgpmil", own)) == asdict(
        resolve_training("sgpmil", PAPER_TRAINING)
    )


@pytest.mark.parametrize("row", ABLATIONS, ids=lambda row: f"{row.base}: {row.axis}, {row.value}")
def test_a_row_is_possible_and_has_a_folder(row):
    row.design.resolved()
    assert Path(row.design.name).name == row.design.name


@pytest.mark.parametrize("base", AXES)
def test_every_axis_has_the_base_and_differs_from_it_elsewhere(base):
    settings, _ = BASES[base]
    expected = vars(resolve_settings("sgpmil", settings))
    for axis in AXES[base]:
        rows = [row for row in ABLATIONS if (row.base, row.axis) == (base, axis)]
        found = [settings_of(row.design) for row in rows]
        assert found.count(expected) == 1
        assert rows[found.index(expected)].design.name == base
        assert len({repr(sorted(one.items(), key=str)) for one in found}) == len(rows)


def test_rows_that_are_one_design_share_it():
    by_settings = {}
    for row in ABLATIONS:
        key = repr(sorted(row.design.resolved().items(), key=str))
        assert by_settings.setdefault(key, row.design.name) == row.design.name


def test_the_grid_has_the_rows_of_the_papers_table():
    grid = {row.value: settings_of(row.design) for row in ABLATIONS if row.base == "grid"}
    assert len(grid) == 8
    for value, found in grid.items():
        mean, activation, covariance, points = value.split(", ")
        assert (found["mean"], found["activation"]) == (mean, activation)
        assert found["sampling"] == ("full" if covariance == "full" else "independent")
        assert found["num_inducing"] == int(points)
    published = {row.value: row.published for row in ABLATIONS if row.base == "grid"}
    assert published["linear, sigmoid, diagonal, 80"] == (0.98, 0.986, 0.021, 0.973, 0.051)
    assert max(published.values(), key=lambda p: p[1]) == published["linear, sigmoid, diagonal, 80"]
