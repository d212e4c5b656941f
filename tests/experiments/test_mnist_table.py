import csv
import json

import numpy as np
import pytest
from scipy.stats import ttest_rel

from sgpmil.experiments.jobs import JobFile, StudyPlan
from sgpmil.experiments.mnist_rows import COLUMNS
from sgpmil.experiments.mnist_table import (
    HEADER,
    mnist_cells,
    read_mnist_runs,
    write_mnist_tables,
)

VALUES = {
    "sgpmil": ((0.997, 0.006), (0.999, 0.004), (0.998, 0.008)),
    "abmil": ((0.990, 0.010), (0.996, 0.012), (0.991, 0.011)),
    "abmil@mine": ((0.5, None), (0.5, None), (0.5, None)),
}


@pytest.fixture
def out(tmp_path):
    files = []
    for row, seeds in VALUES.items():
        for seed, (auc, ace) in enumerate(seeds):
            file = JobFile("digit-9", row, "deal", seed, {"model": row})
            columns = dict.fromkeys(COLUMNS, 0.9) | {"auc": auc, "ace": ace, "nll": 0.1}
            file.write(
                tmp_path,
                {
                    "status": "done",
                    "error": None,
                    "columns": columns,
                    "num_train": 6666,
                    "num_test": 1111,
                    "parameters": 1234567,
                    "seconds_per_epoch": 0.5 + seed,
                    "seconds_to_train": 10.0,
                    "seconds_to_predict": 1.0,
                },
            )
            files.append(file)
    failed = JobFile("digit-9", "agp", "deal", 0, {})
    failed.write(tmp_path, {"status": "failed", "error": "Not today."})
    StudyPlan(tuple(file.key for file in (*files, failed))).write(tmp_path)
    return tmp_path


def test_cells_are_means_and_spreads_beside_the_papers(out):
    runs = read_mnist_runs(out)
    cells = dict(zip(HEADER, mnist_cells(runs, "sgpmil"), strict=True))
    assert cells["runs"] == "3"
    assert cells["bag AUC"] == ".998 ± .001 (.995)"
    assert cells["bag ACE"] == ".006 ± .002 (.009)"
    assert cells["s/epoch"] == "1.50"
    assert cells["parameters"] == "1,234,567"
    own = dict(zip(HEADER, mnist_cells(runs, "abmil@mine"), strict=True))
    assert own["bag AUC"] == ".500 ± .000"  # the paper has no such row
    assert own["bag ACE"] == "–"


def test_rows_are_in_the_order_of_the_table_and_failures_are_left_out(out):
    names = list(dict.fromkeys(run.row for run in read_mnist_runs(out)))
    assert names == ["sgpmil", "abmil", "abmil@mine"]


def test_differences_are_scipys_paired_test(out):
    (text, sheet, figure) = write_mnist_tables(out)
    first, second = (np.array([v[0] for v in VALUES[row]]) for row in ("sgpmil", "abmil"))
    test = ttest_rel(first, second)
    wanted = f"+{(first - second).mean():.3f}, p = {test.pvalue:.3f}".replace("0.", ".")
    lines = text.read_text().split("less each row")[1].splitlines()
    row = next(line for line in lines if line.startswith("| abmil |"))
    assert row.split(" | ")[1] == wanted
    assert figure.read_bytes().startswith(b"\x89PNG")
    with sheet.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = json.loads((out / "digit-9/abmil/deal-seed2.json").read_text())
    (last,) = (r for r in rows if (r["row"], r["seed"]) == ("abmil", "2"))
    assert float(last["ace"]) == found["columns"]["ace"]
    assert "instance_f1_half" not in last  # no run has it
    assert next(r for r in rows if r["row"] == "abmil@mine")["ace"] == ""


def test_without_runs_nothing_is_written(tmp_path):
    assert write_mnist_tables(tmp_path) == ()
    assert not list(tmp_path.iterdir())
