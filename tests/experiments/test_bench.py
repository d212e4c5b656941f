import json
import math

import pytest
import torch

from sgpmil.errors import SettingsError
from sgpmil.experiments.bench import BenchSettings, Workload, bag_sizes, bench, write_bench
from sgpmil.experiments.peak_memory import PeakMemory
from sgpmil.models import build_model

CPU = torch.device("cpu")
TINY = Workload(train_bags=6, test_bags=4, in_dim=5, scale=0.005)


def test_the_workload_is_the_one_that_was_measured_elsewhere():
    sizes = bag_sizes(270, seed=0)
    assert sizes.sum() == 694_241
    assert (sizes.min() >= 200, sizes.max() <= 12_000) == (True, True)
    logs = [math.log(n) for n in bag_sizes(20_000, seed=1)]
    mean = sum(logs) / len(logs)
    assert mean == pytest.approx(math.log(2200), abs=0.02)


def test_half_the_size_is_half_the_instances():
    whole, half = bag_sizes(50, 0), bag_sizes(50, 0, scale=0.5)
    assert abs(half * 2 - whole).max() <= 1


@pytest.mark.parametrize("values", [{"train_bags": 1}, {"scale": 0.0}, {"in_dim": 0}])
def test_a_workload_of_nothing_is_refused(values):
    with pytest.raises(SettingsError, match="Expected"):
        Workload(**values)


@pytest.mark.parametrize("values", [{"repeats": 0}, {"largest": 0}, {"bags_per_step": 0}])
def test_what_cannot_be_measured_is_refused_before_anything_is(values):
    (name,) = values
    with pytest.raises(SettingsError, match=f"Expected {name}"):
        BenchSettings(("mean-pool",), **values)


def test_models_are_measured_and_a_failure_stops_none(monkeypatch, tmp_path):
    from sgpmil.experiments import bench as module

    def refused(bags, *, model, **rest):
        if model == "max-pool":
            raise SettingsError("Not today.")
        return fit(bags, model=model, **rest)

    fit = module.fit
    monkeypatch.setattr(module, "fit", refused)
    monkeypatch.setattr(module, "_BAG_SIZES", (20, 40, 200))
    monkeypatch.setattr(module, "_BAG_COUNTS", (2, 4))
    settings = BenchSettings(
        ("mean-pool", "max-pool", "abmil"), TINY, repeats=2, growth_model="mean-pool", largest=200
    )
    begun = []
    rows, points = bench(settings, CPU, on_start=begun.append)
    assert begun == ["mean-pool", "max-pool", "abmil", "mean-pool, growing bags"]
    assert [row.error is None for row in rows] == [True, False, True]
    assert "Not today." in rows[1].error
    measured = rows[0]
    own = build_model("mean-pool", in_dim=5, num_classes=2)
    assert measured.parameters == own.num_parameters()
    assert measured.train_seconds > 0
    low, high = measured.train_spread
    assert low <= measured.train_seconds <= high
    assert [(p.along, p.size, p.job) for p in points if p.along == "instances"] == [
        ("instances", 20, "predict"),
        ("instances", 20, "train"),
        ("instances", 40, "predict"),
        ("instances", 200, "predict"),
    ]
    write_bench(tmp_path / "bench.json", settings, rows, points)
    content = json.loads((tmp_path / "bench.json").read_text())
    assert [row["model"] for row in content["models"]] == ["mean-pool", "max-pool", "abmil"]
    assert content["settings"]["workload"]["train_bags"] == 6
    assert len(content["growth"]) == len(points)


def test_the_peak_is_what_was_held_at_once():
    size = 2**27
    with PeakMemory(CPU) as peak:
        for _ in range(3):
            held = torch.ones(size // 4)
            held += 1
            del held
    if peak.bytes is None:
        pytest.skip("this system does not tell a process's memory")
    assert 0.6 * size < peak.bytes < 2 * size
