import math

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_rel
from statsmodels.stats.multitest import multipletests

from sgpmil.experiments.design_study import ScoredRun
from sgpmil.experiments.model_table import spread_of
from sgpmil.experiments.uncertainty_table import column_name, compare_with, format_spread


def runs_of(data_set, design, values, **more):
    return [
        ScoredRun(
            data_set,
            design,
            seed,
            {"auc": value, **{k: v[seed] for k, v in more.items()}},
            num_train=40,
            num_test=10,
            parameters=1,
            seconds=1.0,
        )
        for seed, value in enumerate(values)
    ]


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    base = rng.uniform(0.8, 0.9, 10)
    return base, base + rng.normal(0.02, 0.02, 10), base + rng.normal(0.005, 0.02, 10)


def test_paired_differences_against_scipy_and_statsmodels(values):
    base, one, other = values
    runs = [
        *runs_of("digits", "abmil", base),
        *runs_of("digits", "one", one),
        *runs_of("digits", "other", other),
    ]
    found = {row.design: row for row in compare_with(runs, "abmil")}
    p_values = []
    for name, numbers in (("one", one), ("other", other)):
        test = ttest_rel(numbers, base)
        low, high = test.confidence_interval(0.95)
        row = found[name]
        assert row.num_seeds == 10
        assert row.difference == pytest.approx((numbers - base).mean())
        assert (row.low, row.high) == (pytest.approx(low), pytest.approx(high))
        assert row.p_value == pytest.approx(test.pvalue)
        p_values.append(test.pvalue)
    adjusted = multipletests(p_values, method="holm")[1]
    assert [found[n].p_holm for n in ("one", "other")] == pytest.approx(list(adjusted))


def test_seeds_that_divide_the_same_bags_have_wider_intervals(values):
    base, one, _ = values
    (row,) = compare_with([*runs_of("colon", "abmil", base), *runs_of("colon", "x", one)], "abmil")
    d = one - base
    error = d.std(ddof=1) * math.sqrt(1 / 10 + 10 / 40)
    assert row.high - row.low == pytest.approx(2 * student.ppf(0.975, 9) * error)
    assert row.p_value == pytest.approx(2 * student.sf(abs(d.mean()) / error, 9))


def test_only_seeds_of_both_are_compared(values):
    base, one, _ = values
    runs = [*runs_of("digits", "abmil", base)[:6], *runs_of("digits", "x", one)[2:]]
    (row,) = compare_with(runs, "abmil")
    assert row.num_seeds == 4
    assert row.difference == pytest.approx((one - base)[2:6].mean())
    assert compare_with(runs, "nobody") == []


def test_the_largest_probability_stands_in_for_a_missing_posterior(values):
    base, one, other = values
    nothing = [None] * 10
    runs = [
        *runs_of("digits", "abmil", base, errors_max=base, errors_std=nothing),
        *runs_of("digits", "x", one, errors_max=one, errors_std=other),
    ]
    found = {row.column: row for row in compare_with(runs, "abmil")}
    assert found["errors_std"].difference == pytest.approx((other - base).mean())
    assert found["errors_max"].difference == pytest.approx((one - base).mean())


def test_names_and_numbers():
    assert column_name("novelty_patch@stain") == "novelty, patch, stain"
    assert column_name("best") == "best"
    assert format_spread(spread_of([0.5, 0.7])) == "0.600 ± 0.141"
    assert format_spread(spread_of([None])) == "–"
