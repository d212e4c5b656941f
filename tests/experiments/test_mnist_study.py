import csv
import io
import json

import numpy as np
import pytest

import sgpmil.experiments.mnist_study as study
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import BagError, RunFolderError, SettingsError
from sgpmil.evaluation.localisation.localisation import localisation
from sgpmil.evaluation.prediction import InstanceScores, Prediction, SlideName
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.experiments.mnist_study import (
    MnistOptions,
    compare_on_mnist,
    instance_columns,
    measure,
    plan_mnist,
)
from sgpmil.experiments.mnist_table import write_mnist_tables
from tests.experiments.tiny_data import write_mnist


def predictions(rng, num_bags=40):
    """Predictions of bags of nine, whose attention tells positive instances apart, mostly."""
    names, samples, scores = [], [], []
    for number in range(num_bags):
        labels = (rng.random(9) < 0.15).astype(np.int64)
        score, prob = rng.random(9) + labels, rng.uniform(0.05, 0.95)
        names.append(SlideName(f"b{number}", f"b{number}", int(labels.any())))
        samples.append([[1 - prob, prob]])
        scores.append(InstanceScores(score / score.sum(), np.zeros(9), instance_labels=labels))
    found = Prediction.from_batch(names, np.array(samples), scores)
    return PredictionTable(tuple(found), ClassTarget(("no", "yes")))


def test_instance_columns_are_those_of_the_evaluation(rng):
    table = predictions(rng)
    found = instance_columns(table)
    rows = localisation(table, threshold="best_on_test", criterion="f1")
    (row,) = (r for r in rows if (r.score, r.scope) == ("attention", "per_slide"))
    assert found.auc == pytest.approx(row.auc)
    assert found.f1 == pytest.approx(row.f1)
    assert found.ace == pytest.approx(row.ace)
    # The FROC by its definition: AUC times the share of negatives, a mean over positive bags.
    bags = [p for p in table.predictions if p.label]
    labels = [bag.instances.instance_labels for bag in bags]
    aucs = [
        np.mean([x > z for x in s[y == 1] for z in s[y == 0]])
        for s, y in ((bag.instances.attention_mean, y) for bag, y in zip(bags, labels, strict=True))
    ]
    shares = [1 - y.mean() for y in labels]
    assert found.froc == pytest.approx(np.mean(np.multiply(aucs, shares)))
    assert found.ceiling == pytest.approx(np.mean(shares))


def test_f1_at_a_half_is_scikit_learns(rng):
    from sklearn.metrics import f1_score

    table = predictions(rng)
    values = []
    for bag in table.predictions:
        if bag.label:
            s = bag.instances.attention_mean
            called = (s - s.min()) / (s.max() - s.min()) >= 0.5
            values.append(f1_score(bag.instances.instance_labels, called))
    assert instance_columns(table).f1_half == pytest.approx(np.mean(values))


def test_without_positive_bags_instances_have_no_metrics(rng):
    table = predictions(rng)
    negative = PredictionTable(tuple(p for p in table.predictions if not p.label), table.target)
    found = measure(negative)
    assert found["instance_auc"] is None
    assert found["auc"] is None
    json.dumps(found, allow_nan=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    write_mnist(place / "mnist")
    return place


QUICK = {"row": ("mean-pool",), "seeds": "0-1", "epochs": 2, "jobs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    options = MnistOptions(data=data, out=out, max_bags=36, **QUICK)
    assert compare_on_mnist(options) == {}
    return options


@pytest.mark.slow
def test_runs_are_kept_and_not_done_again(finished, monkeypatch):
    files = sorted(finished.out.rglob("*-seed*.json"))
    assert [str(p.relative_to(finished.out)) for p in files] == [
        "digit-9/mean-pool/deal-seed0.json",
        "digit-9/mean-pool/deal-seed1.json",
    ]
    found = json.loads(files[0].read_text())
    assert (found["num_train"], found["num_test"]) == (36, 6)
    assert found["settings"]["training"]["epochs"] == 2
    monkeypatch.setattr(study, "fit", None)
    assert compare_on_mnist(finished) == {}


@pytest.mark.slow
def test_results_of_other_bags_are_refused(finished, data):
    with pytest.raises(RunFolderError, match="max_bags 36"):
        compare_on_mnist(MnistOptions(data=data, out=finished.out, max_bags=42, **QUICK))


@pytest.mark.slow
def test_the_tables_are_written_from_the_runs(finished):
    files = write_mnist_tables(finished.out)
    assert [path.name for path in files] == ["table.md", "runs.csv", "digit-9.png"]
    rows = list(csv.DictReader(io.StringIO(files[1].read_text())))
    assert [(row["row"], row["seed"]) for row in rows] == [("mean-pool", "0"), ("mean-pool", "1")]


@pytest.mark.slow
def test_choosing_compares_rates_and_never_reads_the_test_digits(data, tmp_path):
    files = data / "mnist"
    copy = tmp_path / "mnist"
    copy.mkdir()
    for path in files.glob("train*"):
        (copy / path.name).write_bytes(path.read_bytes())
    options = MnistOptions(
        data=tmp_path, out=tmp_path / "out", choose=True, max_bags=36, **{**QUICK, "seeds": "0"}
    )
    jobs = plan_mnist(options)
    assert [job.design.name for job in jobs] == [
        "mean-pool@0.0002",
        "mean-pool@0.0005",
        "mean-pool@0.001",
    ]
    assert compare_on_mnist(options, jobs[:1]) == {}
    with pytest.raises(BagError, match="t10k-images"):
        plan_mnist(MnistOptions(data=tmp_path, **QUICK))


def test_own_rows_alone_or_beside_others(data):
    own = ("mine:model=max-pool",)
    alone = plan_mnist(MnistOptions(data=data, design=own, seeds="0"))
    assert [job.design.name for job in alone] == ["mine"]
    both = plan_mnist(MnistOptions(data=data, design=own, row=("abmil",), seeds="0"))
    assert [job.design.name for job in both] == ["abmil", "mine"]
    with pytest.raises(SettingsError, match="a name twice"):
        plan_mnist(MnistOptions(data=data, design=(*own, *own), seeds="0"))
