import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.metrics.classification import (
    classification_coverage_score,
    classification_mean_width_score,
)

from sgpmil.errors import PredictionError
from sgpmil.evaluation.uncertainty.conformal import ConformalPredictor, fit_conformal
from sgpmil.evaluation.uncertainty.set_metrics import pooled_set_metrics, set_metrics
from tests.evaluation.tables import table_of
from tests.evaluation.uncertain_tables import built, model_table, slides


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_against_mapie(method):
    predictor = fit_conformal(model_table(60, 3, seed=1), 0.7, method)
    test = model_table(150, 3, seed=2)
    found = set_metrics(predictor, test)
    members = predictor.sets(test).members
    one_level = members[:, :, None]
    assert found.coverage == pytest.approx(classification_coverage_score(test.labels, one_level)[0])
    assert found.mean_size == pytest.approx(classification_mean_width_score(one_level)[0])
    for c in range(3):
        own = test.labels == c
        expected = classification_coverage_score(test.labels[own], one_level[own])[0]
        assert found.class_coverage[c] == pytest.approx(expected)
        width = classification_mean_width_score(one_level[own])[0]
        assert found.class_size[c] == pytest.approx(width)
    assert (found.method, found.nominal, found.num_slides) == (method, 0.7, 150)


@settings(max_examples=40)
@given(slides(), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_against_a_loop(drawn, thresholds):
    table = built(drawn)
    num_classes = table.num_classes
    predictor = ConformalPredictor(
        "lac",
        0.9,
        np.array(thresholds[:num_classes]),
        (1,) * num_classes,
        True,
        table.class_names,
    )
    found = set_metrics(predictor, table)
    sets = [set(names) for names in predictor.sets(table).names()]
    raw = [set(names) for names in predictor.sets(table, allow_empty=True).names()]
    names = [table.class_names[y] for y in table.labels]
    hits = [name in own for name, own in zip(names, sets, strict=True)]
    assert found.coverage == pytest.approx(sum(hits) / len(hits))
    assert found.mean_size == pytest.approx(sum(map(len, sets)) / len(sets))
    assert found.share_empty == pytest.approx(sum(not own for own in raw) / len(raw))
    assert found.share_single == pytest.approx(sum(len(own) == 1 for own in sets) / len(sets))
    for c, name in enumerate(table.class_names):
        own = [i for i, other in enumerate(names) if other == name]
        if own:
            assert found.class_coverage[c] == pytest.approx(np.mean([hits[i] for i in own]))
            assert found.class_size[c] == pytest.approx(np.mean([len(sets[i]) for i in own]))
        else:
            assert math.isnan(found.class_coverage[c])
            assert math.isnan(found.class_size[c])


def test_pooling_counts_every_slide_once():
    predictor = fit_conformal(model_table(60, 3, seed=1), 0.7)
    tables = [model_table(n, 3, seed=n, name=f"{n}-") for n in (5, 40, 17)]
    pooled = pooled_set_metrics([set_metrics(predictor, table) for table in tables])
    predictions = tuple(p for table in tables for p in table.predictions)
    whole = set_metrics(predictor, type(tables[0])(predictions, tables[0].class_names))
    for name in ("coverage", "mean_size", "share_empty", "share_single", "num_slides"):
        assert getattr(pooled, name) == getattr(whole, name)
    np.testing.assert_array_equal(pooled.class_coverage, whole.class_coverage)
    np.testing.assert_array_equal(pooled.class_size, whole.class_size)


def test_no_slides_are_nan():
    predictor = fit_conformal(table_of([[0.9, 0.1], [0.2, 0.8]], [0, 1]), 0.5)
    found = set_metrics(predictor, table_of([[0.5, 0.5]], [None]))
    numbers = (found.coverage, found.mean_size, found.share_empty, found.share_single)
    assert np.isnan([*numbers, *found.class_coverage, *found.class_size]).all()


def test_sets_that_cannot_be_pooled():
    table = model_table(60, 3, seed=1)
    one, other = (set_metrics(fit_conformal(table, c), table) for c in (0.7, 0.8))
    with pytest.raises(PredictionError, match="2 different ones"):
        pooled_set_metrics([one, other])
    with pytest.raises(PredictionError, match="0 different ones"):
        pooled_set_metrics([])
