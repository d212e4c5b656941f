from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.errors import PredictionError
from sgpmil.evaluation.localisation.scored_slides import (
    available_scores,
    groups_of,
    min_max,
    scored_slides,
)
from sgpmil.evaluation.prediction_table import PredictionTable
from tests.evaluation.instance_tables import instance_table, pairs


@settings(deadline=None)
@given(st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=30))
def test_min_max(values):
    values = np.array(values)
    found = min_max(values)
    assert ((found >= 0) & (found <= 1)).all()
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    if values.max() > values.min():
        assert found[values.argmin()] == 0
        assert found[values.argmax()] == 1
    else:
        assert (found == 0.5).all()


@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("kind", ["attention", "evidence"])
def test_known_instances(kind, num_classes):
    table = instance_table(8, num_classes)
    found = scored_slides(table, kind)
    for scale in (True, False):
        expected = pairs(table, kind, scale)
        assert [s.slide_id for s in found] == list(expected)
        for slide in found:
            values, positive = expected[slide.slide_id]
            np.testing.assert_allclose(slide.scaled if scale else slide.raw, values, atol=1e-12)
            np.testing.assert_array_equal(slide.positive, positive)
    assert [s.is_positive for s in found] == [p.label > 0 for p in table.predictions]


def test_spread_is_in_the_scale_of_the_score():
    table = instance_table(4)
    for slide, p in zip(scored_slides(table, "attention"), table.predictions, strict=True):
        known = p.instances.instance_labels >= 0
        width = np.ptp(p.instances.attention_mean)
        np.testing.assert_allclose(slide.scaled_std, p.instances.attention_std[known] / width)


def test_scores_without_knowledge():
    table = instance_table(6)
    for slide in scored_slides(table, "uniform"):
        assert set(slide.scaled) == {0.5}
        assert set(slide.raw) == {1 / 25}
        assert np.isnan(slide.scaled_std).all()
    first, again = scored_slides(table, "random"), scored_slides(table, "random")
    other = scored_slides(table, "random", seed=1)
    np.testing.assert_array_equal(first[0].raw, again[0].raw)
    assert not np.array_equal(first[0].raw, other[0].raw)
    assert not np.array_equal(first[0].raw[:5], first[1].raw[:5])
    # Its name decides, not its place in the table.
    backwards = PredictionTable(table.predictions[::-1], table.class_names)
    np.testing.assert_array_equal(scored_slides(backwards, "random")[-1].raw, first[0].raw)


def test_what_cannot_be_evaluated_is_left_out():
    table = instance_table(4)
    p = table.predictions[1]
    none = np.full(25, -1)
    odd = (
        replace(p, slide_id="a", label=None),
        replace(p, slide_id="b", instances=None),
        replace(p, slide_id="c", instances=replace(p.instances, instance_labels=None)),
        replace(p, slide_id="d", instances=replace(p.instances, instance_labels=none)),
    )
    more = PredictionTable((*table.predictions, *odd), table.class_names)
    assert [s.slide_id for s in scored_slides(more, "attention")] == list(table.slide_ids)
    bare = replace(
        p, slide_id="e", instances=replace(p.instances, evidence_mean=None, evidence_std=None)
    )
    mixed = PredictionTable((*table.predictions, bare), table.class_names)
    assert len(scored_slides(mixed, "attention")) == 5
    assert len(scored_slides(mixed, "evidence")) == 4
    assert available_scores(mixed) == ("attention", "evidence", "uniform", "random")
    alone = PredictionTable((bare,), table.class_names)
    assert available_scores(alone) == ("attention", "uniform", "random")


def test_positive_classes():
    table = instance_table(6, 3)
    found = scored_slides(table, "attention", positive_classes=(0, 2))
    assert [s.is_positive for s in found] == [True, False, True, True, False, True]
    for wrong in ((3,), (-1,), ()):
        with pytest.raises(PredictionError, match="positive classes between 0 and 2"):
            scored_slides(table, "attention", positive_classes=wrong)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scores_that_are_no_numbers(wrong):
    values = np.ones(25)
    values[3] = wrong
    table = instance_table(2, attention_mean=values)
    with pytest.raises(PredictionError, match="finite attention for every instance of 's0-0'"):
        scored_slides(table, "attention")


def test_groups():
    table = instance_table(6)
    slides = scored_slides(table, "attention")
    assert len(groups_of(slides, "per_slide")) == 3
    (pooled,) = groups_of(slides, "pooled")
    expected = pairs(table)
    np.testing.assert_allclose(pooled.scores, np.concatenate([v for v, _ in expected.values()]))
    np.testing.assert_array_equal(
        pooled.positive, np.concatenate([y for _, y in expected.values()])
    )
    (raw,) = groups_of(slides, "pooled_raw")
    assert len(raw.scores) == len(pooled.scores)
    assert raw.scores.max() > 1
    assert groups_of((), "pooled") == ()
