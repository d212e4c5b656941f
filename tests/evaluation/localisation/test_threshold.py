import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

from sgpmil.evaluation.localisation.scored_slides import InstanceGroup, scored_slides
from sgpmil.evaluation.localisation.threshold import best_threshold, call_metrics, choose_threshold
from tests.evaluation.instance_tables import instance_table

CRITERIA = ("balanced_accuracy", "accuracy", "f1")
SCORERS = {
    "balanced_accuracy": lambda y, z: (z[y].mean() + (~z[~y]).mean()) / 2,
    "accuracy": lambda y, z: (y == z).mean(),
    "f1": lambda y, z: 2 * (y & z).sum() / (y.sum() + z.sum()),
}
CALLS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30)
GROUP = st.lists(
    st.tuples(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(CALLS)
def test_calls_against_sklearn(calls):
    called, positive = (np.array(column) for column in zip(*calls, strict=True))
    found = call_metrics(called, positive)
    assert found.accuracy == pytest.approx(accuracy_score(positive, called))
    expected = f1_score(positive, called, zero_division=np.nan)
    np.testing.assert_allclose(found.f1, expected)
    recalls = [np.mean(called[positive == y] == y) for y in np.unique(positive)]
    assert found.balanced_accuracy == pytest.approx(np.mean(recalls))
    if 0 < positive.sum() < len(positive):
        expected = balanced_accuracy_score(positive, called)
        assert found.balanced_accuracy == pytest.approx(expected)


def test_f1_is_dice():
    rng = np.random.default_rng(0)
    called, positive = rng.random(50) < 0.4, rng.random(50) < 0.3
    both = sum(1 for a, b in zip(called, positive, strict=True) if a and b)
    dice = 2 * both / (sum(called) + sum(positive))
    assert call_metrics(called, positive).f1 == pytest.approx(dice)


def test_undefined_calls_are_nan():
    none = np.zeros(3, dtype=bool)
    assert math.isnan(call_metrics(none, none).f1)
    assert call_metrics(none, none).balanced_accuracy == 1
    empty = np.zeros(0, dtype=bool)
    assert math.isnan(call_metrics(empty, empty).balanced_accuracy)


def mean_metric(groups, threshold, criterion):
    return np.mean([SCORERS[criterion](y, s >= threshold) for s, y in groups])


@pytest.mark.parametrize("criterion", CRITERIA)
@settings(deadline=None)
@given(st.lists(GROUP, min_size=1, max_size=4))
def test_best_of_all_thresholds(criterion, groups):
    groups = [[np.array(column) for column in zip(*group, strict=True)] for group in groups]
    usable = [(s, y) for s, y in groups if 0 < y.sum() < len(y)]
    found = best_threshold([InstanceGroup(*group) for group in groups], criterion)
    if not usable:
        assert math.isnan(found)
        return
    tried = sorted({float(v) for s, _ in usable for v in s} | {math.inf}, reverse=True)
    values = [mean_metric(usable, t, criterion) for t in tried]
    assert mean_metric(usable, found, criterion) == pytest.approx(max(values), abs=1e-9)
    assert found == next(t for t, v in zip(tried, values, strict=True) if v >= max(values) - 1e-9)


def test_choice():
    test = scored_slides(instance_table(8), "attention")
    validation = scored_slides(instance_table(8, seed=5), "attention")
    negative = [s for s in test if not s.is_positive]

    def choose(*arguments):
        return choose_threshold(*arguments, criterion="balanced_accuracy")

    for scope in ("per_slide", "pooled"):
        on_test = choose(test, validation, scope, "best_on_test")
        on_validation = choose(test, validation, scope, "validation")
        # The choice never looks at the other slides.
        assert on_validation == choose(validation, validation, scope, "best_on_test")
        assert on_validation == choose(negative, validation, scope, "validation")
        assert on_test.value != on_validation.value
        assert on_test.reason == on_validation.reason == ""
        nothing = choose(test, None, scope, "validation")
        assert math.isnan(nothing.value)
        assert "no predictions of validation slides" in nothing.reason
        assert "no validation slide has both" in choose(test, negative, scope, "validation").reason
        assert "no test slide has both" in choose(negative, None, scope, "best_on_test").reason
