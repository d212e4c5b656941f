import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import fit_conformal
from sgpmil.evaluation.uncertainty.decisions import (
    Decision,
    DecisionMetrics,
    decide,
    fit_deferral,
    measure_decisions,
)
from sgpmil.evaluation.uncertainty.measures import UNCERTAINTY_MEASURES, uncertainty
from tests.evaluation.tables import table_of
from tests.evaluation.uncertain_tables import model_table


def with_entropies(values):
    table = table_of(np.full((len(values), 2), 0.5), [None] * len(values))
    predictions = (
        replace(p, entropy=float(v)) for p, v in zip(table.predictions, values, strict=True)
    )
    return PredictionTable(tuple(predictions), table.target)


@given(st.integers(1, 60), st.integers(1, 99))
def test_the_expected_share_by_counting_every_rank(num_slides, percent):
    # A new slide exchangeable with the n others has each of the n + 1 ranks equally often.
    share = percent / 100
    rule = fit_deferral(with_entropies(range(num_slides)), share)
    new = with_entropies(np.arange(num_slides + 1) - 0.5)
    assert rule.defers(new).mean() == pytest.approx(rule.expected_share)
    assert share - 1e-9 <= rule.expected_share < share + 1 / (num_slides + 1)
    assert (rule.num_slides, rule.asked_share) == (num_slides, share)


@pytest.mark.parametrize("measure", UNCERTAINTY_MEASURES)
def test_the_share_is_met_on_new_slides(measure):
    rule = fit_deferral(model_table(399, 3, seed=1), 0.2, measure)
    test = model_table(1000, 3, seed=2)
    deferred = rule.defers(test)
    assert abs(deferred.mean() - 0.2) < 3 * math.sqrt(0.16 * (1 / 1000 + 1 / 399))
    # Those deferred are the least certain, and one slide is decided as among many.
    values = uncertainty(test, measure)
    assert values[deferred].min() > values[~deferred].max()
    for row in (0, 500):
        alone = PredictionTable((test.predictions[row],), test.target)
        assert rule.defers(alone)[0] == deferred[row]


def test_a_slide_at_the_threshold_is_kept():
    # A saturated model: most validation slides are equally and wholly certain.
    rule = fit_deferral(with_entropies([0.0] * 19 + [0.3]), 0.1)
    assert rule.threshold == 0.0
    assert rule.defers(with_entropies([0.0, 1e-6, 0.3])).tolist() == [False, True, True]


def test_what_is_unknown_goes_to_a_human():
    rule = fit_deferral(with_entropies([0.1, 0.2, 0.3]), 0.3)
    assert rule.defers(with_entropies([0.0, math.nan])).tolist() == [False, True]


def test_a_certain_slide_of_a_model_with_a_posterior_is_kept():
    table = model_table(50, 3, seed=1)
    rule = fit_deferral(table, 0.1, "std")
    sure = replace(table.predictions[0], std=np.zeros(3))
    assert not rule.defers(PredictionTable((sure,), table.target))[0]


def test_too_few_slides_defer_everything():
    rule = fit_deferral(with_entropies([0.4]), 0.9)
    assert rule.threshold == -math.inf
    assert rule.expected_share == 1.0
    assert rule.defers(with_entropies([0.0])).all()


def test_impossible_input():
    table = with_entropies([0.1, 0.2])
    for share in (0.0, 1.0, 10.0, math.nan):
        with pytest.raises(PredictionError, match="between 0 and 1"):
            fit_deferral(table, share)
    with pytest.raises(PredictionError, match="'std', but 2 of 2 lack it"):
        fit_deferral(table, 0.1, "std")
    with pytest.raises(PredictionError, match="but got none"):
        fit_deferral(with_entropies([]), 0.1)


@pytest.fixture
def predicted():
    table, validation = model_table(12, 3, seed=1), model_table(60, 3, seed=2)
    return table, fit_conformal(validation, 0.8), fit_deferral(validation, 0.25)


def test_a_slide_is_decided_by_both_rules(predicted):
    table, conformal, deferral = predicted
    decisions = decide(table, conformal, deferral)
    assert tuple(d.slide_id for d in decisions) == table.slide_ids
    assert tuple(d.prediction_set for d in decisions) == conformal.sets(table).names()
    assert [d.deferred for d in decisions] == deferral.defers(table).tolist()
    assert {d.deferred for d in decisions} == {True, False}
    assert decide(table)[3] == Decision(table.slide_ids[3], None, None)
    assert decide(table)[3].columns == {}


def test_decisions_are_counted_on_slides_that_nothing_has_seen():
    said, labels = [0, 0, 1, 1, 0, 0], [0, 1, 1, 0, 1, None]
    table = table_of(np.eye(2)[said] * 0.8 + 0.1, labels, ("no", "yes"))
    rows = list(table.predictions)
    rows[4] = replace(rows[4], seen="calibration")  # which is wrong, and would count else
    table = replace(table, predictions=tuple(rows))
    sets = [("no",), ("no", "yes"), ("no",), None, ("no",), ("no",)]
    defers = [False, True, True, False, True, True]
    decisions = {
        row.slide_id: Decision(row.slide_id, names, deferred)
        for row, names, deferred in zip(rows, sets, defers, strict=True)
    }
    expected = DecisionMetrics(
        num_slides=4,
        num_seen=1,
        num_with_set=3,
        num_covered=2,
        num_deferred=2,
        wrong_kept=1,
        wrong_deferred=1,
    )
    assert measure_decisions(table, decisions) == expected
    only_sets = {name: replace(one, deferred=None) for name, one in decisions.items()}
    assert measure_decisions(table, only_sets).num_deferred is None
    assert measure_decisions(table, {}) is None
