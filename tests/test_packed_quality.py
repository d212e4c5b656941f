"""The statistics of the study of packed steps: a wrong one would call a loss noise."""

import argparse
import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sgpmil.errors import SettingsError

PATH = Path(__file__).parents[1] / "benchmarks" / "packed_quality.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("benchmark_packed_quality", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    yield spec.loader.exec_module(module) or module
    del sys.modules[spec.name]


def result(fold, seed, variant="a", **metrics):
    return {
        "status": "done",
        "fold": fold,
        "seed": seed,
        "variant": variant,
        "seconds_per_epoch": 0.1,
        "test": {"metrics": metrics},
    }


def test_the_interval_is_that_of_the_paired_t_test(study):
    generator = np.random.default_rng(0)
    a, b = generator.normal(0.1, 1, 12), generator.normal(0, 1, 12)
    found = study.paired_difference(a, b)
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert found.count == 12


def test_five_gains_out_of_five_are_as_likely_as_counted(study):
    # All signs alike, of which two of the 2^5 patterns are.
    found = study.paired_difference([0.9, 0.8, 0.7, 0.95, 0.6], [0.5, 0.3, 0.1, 0.25, 0.0])
    assert found.p == pytest.approx(2 / 2**5)


def test_runs_without_the_metric_have_no_pair(study):
    found = study.paired_difference([1.0, math.nan, 3.0, 5.0], [0.0, 0.0, math.nan, 1.0])
    assert (found.count, found.mean) == (2, 2.5)
    assert str(study.paired_difference([1.0, math.nan], [0.0, 0.0])) == "–"


def test_the_same_twice_is_no_difference(study):
    found = study.paired_difference([0.5, 0.7], [0.5, 0.7])
    assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_the_noise_of_seeds_is_not_that_of_folds(study):
    # Variances over seeds of .02 and .08; the folds lie far apart.
    runs = [result("0", 0, auc=0.1), result("0", 1, auc=0.3)]
    runs += [result("1", 0, auc=10.1), result("1", 1, auc=10.5)]
    assert study.seed_noise(runs, "auc", "test") == pytest.approx(math.sqrt((0.02 + 0.08) / 2))


def test_differences_go_by_fold_and_seed_not_by_order(study):
    keys = [(fold, seed) for fold in "01" for seed in (0, 1)]
    one = [result(*k, "one", auc=float(i)) for i, k in enumerate(keys)]
    packed = [result(*k, "packed", auc=i + 0.25) for i, k in enumerate(keys)]
    failed = {**result("2", 0, "one", auc=9.0), "status": "failed"}
    pair = (study.Variant("packed"), study.Variant("one"))
    table = study.differences([*reversed(packed), *one, failed], [pair], "test")
    assert table.splitlines()[-1].startswith(
        "| packed less one | +0.250 [+0.250, +0.250], p = 0.12 | – |"
    )


def options(**values):
    start = {
        "data": "colon",
        "model": "sgpmil",
        "bags": [1, 32],
        "precisions": ["32"],
        "powers": None,
        "epochs": None,
    }
    return argparse.Namespace(**(start | values))


def test_variants_have_the_rate_of_the_rule_or_of_the_power(study):
    rates = {k: v.training["learning_rate"] for k, v in study.variants_of(options()).items()}
    assert rates == pytest.approx({(1, "32", None): 3e-4, (32, "32", None): 6e-4 * 8**0.5})
    found = study.variants_of(options(powers=[0.0, 1.0]))
    rates = {(k[0], k[2]): v.training["learning_rate"] for k, v in found.items()}
    assert rates == pytest.approx({(1, 0): 6e-4, (32, 0): 6e-4, (1, 1): 1.5e-4, (32, 1): 48e-4})


def test_variants_differ_in_name_and_in_what_the_name_says(study):
    found = study.variants_of(options(data="mnist", precisions=["32", "bf16"]))
    assert [v.name for v in found.values()] == [
        "sgpmil, 1 bag",
        "sgpmil, 32 bags",
        "sgpmil, 1 bag, bf16",
        "sgpmil, 32 bags, bf16",
    ]
    assert [(v.training["bags_per_step"], v.training["precision"]) for v in found.values()] == [
        key[:2] for key in found
    ]
    assert {v.settings["encoder"] for v in found.values()} == {"digit-cnn"}
    with pytest.raises(SettingsError, match="bags_per_step"):
        study.variants_of(options(bags=[1, 0]))
