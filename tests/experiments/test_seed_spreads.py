import math

import numpy as np
import pytest
from scipy import stats

from sgpmil.experiments.design_study import ScoredRun
from sgpmil.experiments.seed_spreads import (
    compare_runs,
    comparison_text,
    corrected,
    csv_text,
    interval_of,
)


def run_of(design, seed, value, num_train=20, num_test=10):
    return ScoredRun("s", design, seed, {"auc": value}, num_train, num_test, 1, 1.0)


def test_an_interval_is_students():
    values = [0.5, 0.7, 0.6, 0.9]
    found = interval_of([*values, None, math.nan])
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.count == 4


def test_one_value_has_no_interval_and_none_no_mean():
    assert interval_of([0.5]).text == "0.500"
    assert interval_of([None]).text == "–"


def test_a_comparison_is_paired_by_seed():
    ours = [run_of("a", seed, value) for seed, value in enumerate([0.9, 0.8, 0.95, 0.7])]
    theirs = [run_of("b", seed, value) for seed, value in ((2, 0.9), (0, 0.7), (1, 0.75), (9, 0.0))]
    found = compare_runs(ours, theirs, "auc", alternative="greater")
    expected = stats.ttest_rel([0.9, 0.8, 0.95], [0.7, 0.75, 0.9], alternative="greater")
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval.mean == pytest.approx(0.1)
    assert found.interval.count == 3


def test_overlapping_bags_widen_the_interval():
    ours = [run_of("a", seed, value) for seed, value in enumerate([0.9, 0.8, 0.95])]
    theirs = [run_of("b", seed, 0.7) for seed in range(3)]
    alone = compare_runs(ours, theirs, "auc").interval
    shared = compare_runs(ours, theirs, "auc", independent=False).interval
    widened = math.sqrt((1 / 3 + 10 / 20) / (1 / 3))
    assert shared.high - shared.mean == pytest.approx(widened * (alone.high - alone.mean))


def test_without_a_common_seed_there_is_no_comparison():
    assert compare_runs([run_of("a", 0, 0.5)], [run_of("b", 1, 0.5)], "auc") is None
    assert compare_runs([run_of("a", 0, None)], [run_of("b", 0, 0.5)], "auc") is None


def test_holm_over_the_family():
    ours = [run_of("a", seed, value) for seed, value in enumerate([0.9, 0.8, 0.95])]
    others = [[run_of(str(k), seed, 0.7 - 0.01 * k * seed) for seed in range(3)] for k in range(3)]
    rows = corrected([compare_runs(ours, other, "auc") for other in others])
    smallest = min(rows, key=lambda row: row.p_value)
    assert smallest.p_holm == pytest.approx(min(1, 3 * smallest.p_value))
    assert "p " in comparison_text(smallest)


def test_csv_leaves_out_what_is_not_defined():
    text = csv_text([{"a": 1, "b": math.nan}, {"a": None, "c": "x"}])
    assert text.split() == ["a,b,c", "1,,", ",,x"]
