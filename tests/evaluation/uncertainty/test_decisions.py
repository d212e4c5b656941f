import pytest

from sgpmil.evaluation.uncertainty.conformal import fit_conformal
from sgpmil.evaluation.uncertainty.decisions import Decision, decide
from sgpmil.evaluation.uncertainty.deferral import fit_deferral
from tests.evaluation.uncertain_tables import model_table


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
