import csv
import io

import pytest
from scipy import stats

from sgpmil.experiments.ablation_table import compare_with_base, write_ablation_tables
from sgpmil.experiments.design_study import ScoredRun
from sgpmil.experiments.jobs import JobFile
from sgpmil.experiments.stress_table import (
    compare_axis,
    fails,
    runs_of_axis,
    write_stress_tables,
)

AHEAD = {"sgpmil": (0.95, 0.96, 0.99), "abmil": (0.7, 0.8, 0.75), "dsmil": (0.4, 0.5, 0.6)}


def run_of(data_set, design, seed, auc, **columns):
    found = {"auc": auc, "attention_auc": auc, "best_auc": auc, "ace": 0.1, "nll": 0.5, **columns}
    return ScoredRun(data_set, design, seed, found, 100, 60, 5, 1.0)


def runs(data_set="witness-1"):
    return [
        run_of(data_set, name, seed, value)
        for name, values in AHEAD.items()
        for seed, value in enumerate(values)
    ]


def write(out, found):
    for run in found:
        rest = {k: v for k, v in vars(run).items() if k not in ("data_set", "design", "seed")}
        file = JobFile(run.data_set, run.design, "run", run.seed, {})
        file.write(out, {"status": "done", "error": None, **rest, "columns": dict(run.columns)})


def test_comparisons_are_one_sided_and_corrected_over_the_axis():
    own = runs_of_axis([*runs("witness-1"), *runs("witness-0.1")], "witness")
    rows = compare_axis(own, "attention_auc")
    assert [(value, row.reference) for value, row in rows] == [
        (1.0, "abmil"),
        (1.0, "dsmil"),
        (0.1, "abmil"),
        (0.1, "dsmil"),
    ]
    p = [
        stats.ttest_rel(AHEAD["sgpmil"], AHEAD[name], alternative="greater").pvalue
        for name in ("abmil", "dsmil")
    ]
    assert [row.p_value for _, row in rows] == pytest.approx(p * 2)
    assert min(row.p_holm for _, row in rows) == pytest.approx(4 * min(p))


def test_a_model_fails_where_its_interval_reaches_chance():
    found = runs()
    assert fails([run for run in found if run.design == "dsmil"])
    assert not fails([run for run in found if run.design == "sgpmil"])
    assert fails([run_of("witness-1", "abmil", 0, 0.5)])


def test_the_stress_tables_say_what_the_runs_say(tmp_path):
    write(tmp_path, [*runs("witness-1"), *runs("digits-200"), *runs("digits-50")])
    files = {path.name for path in write_stress_tables(tmp_path, range(3))}
    assert {"stress-witness.png", "stress-noise.png", "stress-bags.png"} <= files
    text = (tmp_path / "stress.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("| dsmil"))
    assert "†" in line
    assert "0.500" in line
    rows = list(csv.DictReader(io.StringIO((tmp_path / "comparisons.csv").read_text())))
    assert {row["axis"] for row in rows} == {"witness", "noise", "bags"}


def test_ablations_are_compared_with_their_base(tmp_path):
    base = [run_of("digits-200", "default", seed, 0.9 + 0.01 * seed) for seed in range(3)]
    other = [
        run_of("digits-200", "default, kernel linear", seed, 0.8 + 0.02 * seed) for seed in range(3)
    ]
    found = compare_with_base([*base, *other], "digits-200", "default", "auc")
    assert set(found) == {"default, kernel linear"}
    row = found["default, kernel linear"]
    assert row.interval.mean == pytest.approx(-0.09)
    paired = stats.ttest_rel([0.8, 0.82, 0.84], [0.9, 0.91, 0.92])
    assert row.p_value == row.p_holm == pytest.approx(paired.pvalue)
    write(tmp_path, [*base, *other])
    files = {path.name for path in write_ablation_tables(tmp_path, range(3))}
    assert "ablations-digits-default.png" in files
    text = (tmp_path / "ablations.md").read_text()
    linear = next(line for line in text.splitlines() if "| kernel | linear |" in line)
    assert "0.820 ± " in linear
    assert "*" in linear
