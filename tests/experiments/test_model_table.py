import csv
import json
import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from sgpmil.experiments.model_study import plan_model_study
from sgpmil.experiments.model_table import (
    COLUMNS,
    Spread,
    at_chance,
    cells,
    read_rows,
    spread_of,
    write_table,
)
from sgpmil.experiments.study import run_jobs
from tests.experiments.tiny_data import write_classic, write_colon

pytestmark = pytest.mark.slow


def test_chance_is_that_of_labels_dealt_at_random(rng):
    labels = np.array([0, 1] * 40)
    ranks = rng.normal(size=(2000, 80)).argsort(axis=1).argsort(axis=1) + 1
    areas = ((ranks * labels).sum(axis=1) - 40 * 41 / 2) / 40**2  # by Mann and Whitney
    marked = [at_chance(Spread(a, math.nan, a, 1), labels.tolist()) for a in areas.tolist()]
    assert np.mean(marked) == pytest.approx(0.954, abs=0.02)


def test_many_runs_on_the_same_bags_are_no_evidence():
    # Fifteen runs agree to a hair, but all were tested on the same twenty bags.
    assert at_chance(Spread(0.58, 0.001, 0.57, 15), [0, 1] * 10)
    assert not at_chance(Spread(0.58, 0.001, 0.57, 15), [0, 1] * 1000)
    # Runs that disagree are none either, however many bags there are.
    assert at_chance(Spread(0.58, 0.2, 0.3, 10), [0, 1] * 1000)
    assert not at_chance(spread_of([]), [0, 1])


def test_spread_leaves_out_what_is_undefined():
    found = spread_of([0.2, None, 0.6, math.nan])
    assert (found.mean, found.worst, found.count) == (0.4, 0.2, 2)
    assert found.sd == pytest.approx(np.std([0.2, 0.6], ddof=1))
    alone = spread_of([0.3])
    assert math.isnan(alone.sd)
    assert math.isnan(spread_of([None]).mean)


def test_a_folder_without_a_study_has_no_rows(tmp_path):
    assert read_rows(tmp_path) == []


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study of two models on two sets, a few epochs each."""
    folder = tmp_path_factory.mktemp("study")
    write_colon(folder / "data" / "colon")
    write_classic(folder / "data" / "classic_mil" / "musk1.npz")
    models = ["bag-size", "mean-pool"]
    jobs = plan_model_study(folder / "data", ["colon"], models, seeds=2, epochs=2)
    jobs += plan_model_study(folder / "data", ["musk1"], models, epochs=2)
    run_jobs(jobs, folder / "out", conditions={"epochs": 2}, progress=False)
    return folder / "out"


def copied(finished, tmp_path):
    for path in finished.rglob("*.json"):
        place = tmp_path / path.relative_to(finished)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path.read_text())
    return tmp_path


def test_numbers_are_those_of_the_predictions_in_the_files(finished):
    _, table = write_table(finished, read_rows(finished))
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["data_set"], r["model"]) for r in rows] == [
        (data_set, model) for data_set in ("colon", "musk1") for model in ("bag-size", "mean-pool")
    ]
    for row in rows:
        files = sorted((finished / row["data_set"] / row["model"]).glob("*-seed*.json"))
        tests = [json.loads(path.read_text())["test"] for path in files]
        assert int(row["runs"]) == int(row["planned"]) == len(files)
        aucs = [roc_auc_score(t["labels"], np.array(t["probs"])[:, 1]) for t in tests]
        assert float(row["auc_mean"]) == pytest.approx(np.mean(aucs))
        assert float(row["auc_sd"]) == pytest.approx(np.std(aucs, ddof=1))
        assert float(row["auc_worst"]) == pytest.approx(min(aucs))
        balanced = [
            balanced_accuracy_score(t["labels"], np.argmax(t["probs"], axis=1)) for t in tests
        ]
        assert float(row["balanced_accuracy_mean"]) == pytest.approx(np.mean(balanced))
        likelihoods = [
            np.mean([-np.log(p[y]) for p, y in zip(t["probs"], t["labels"], strict=True)])
            for t in tests
        ]
        assert float(row["nll_mean"]) == pytest.approx(np.mean(likelihoods), rel=1e-4)
        aces = [t["metrics"]["ace"] for t in tests]
        assert float(row["ace_mean"]) == pytest.approx(np.mean(aces))
        seconds = [json.loads(path.read_text())["seconds_per_epoch"] for path in files]
        assert float(row["seconds_per_epoch"]) == pytest.approx(np.median(seconds))
        assert (row["timed_alone"], row["failed"]) == ("0", "0")
    assert [r["parameters"] for r in rows] == ["4", str(512 * 6 + 512 + 1026), "4", "4098"]


def test_undefined_metrics_are_a_dash(finished):
    of = {
        (row.data_set, row.model): dict(zip(COLUMNS, cells(row), strict=True))
        for row in read_rows(finished)
    }
    assert of["musk1", "mean-pool"]["instance AUC, attention"] == "–"  # no instance labels
    assert of["colon", "bag-size"]["instance AUC, evidence"] == "–"  # it has none
    assert of["colon", "mean-pool"]["instance AUC, attention"] == "0.500 ± 0.000"
    text = write_table(finished, read_rows(finished))[0].read_text()
    assert "nan" not in text
    assert "but for the epochs, which are 2." in text


def test_says_what_was_asked_for_not_what_is_usual(finished):
    text = write_table(finished, read_rows(finished))[0].read_text()
    assert "hold epithelium. 2 folds × 2 seeds." in text
    assert "hold a musk. 10 folds × 1 seed." in text


def test_incomplete_and_failed_runs_are_counted_not_hidden(finished, tmp_path):
    out = copied(finished, tmp_path)
    (out / "colon/mean-pool/1-seed1.json").unlink()
    path = out / "colon/mean-pool/0-seed0.json"
    result = json.loads(path.read_text())
    failed = {k: v for k, v in result.items() if k not in ("test", "val", "parameters")}
    path.write_text(json.dumps({**failed, "status": "failed", "error": "It diverged."}))
    row = next(r for r in read_rows(out) if (r.data_set, r.model) == ("colon", "mean-pool"))
    assert (row.runs, row.planned, row.failed) == (2, 4, 1)
    assert cells(row)[1] == "2 of 4"
    assert cells(row)[-1] == "1"
    for file in (out / "musk1" / "bag-size").iterdir():
        file.unlink()
    row = next(r for r in read_rows(out) if (r.data_set, r.model) == ("musk1", "bag-size"))
    assert cells(row) == ("bag-size", "0 of 10", *["–"] * (len(COLUMNS) - 3), "0")


SECONDS = COLUMNS.index("s/epoch")


def test_times_taken_alone_replace_those_of_the_study(finished, tmp_path):
    out = copied(finished, tmp_path)
    before = {(r.data_set, r.model): cells(r)[SECONDS] for r in read_rows(out)}
    assert all(text.startswith("~") for text in before.values())
    timing = {"colon": {"mean-pool": {"seconds_per_epoch": 1.25, "device": "cpu"}}}
    (out / "timing.json").write_text(json.dumps(timing))
    after = {(r.data_set, r.model): cells(r)[SECONDS] for r in read_rows(out)}
    assert after.pop(("colon", "mean-pool")) == "1.250"
    assert all(before[key] == text for key, text in after.items())
    (out / "timing.json").write_text("[")
    assert {(r.data_set, r.model): cells(r)[SECONDS] for r in read_rows(out)} == before


def test_a_model_that_tells_nothing_apart_is_marked(finished):
    # Bags of both classes are of the same sizes, but hold other instances.
    of = {(row.data_set, row.model): row for row in read_rows(finished)}
    assert of["musk1", "bag-size"].at_chance
    assert "(at chance)" in cells(of["musk1", "bag-size"])[2]
    assert not of["musk1", "mean-pool"].at_chance
