import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, roc_curve

from sgpmil.errors import PredictionError
from sgpmil.evaluation.localisation.froc import (
    FALSE_POSITIVE_RATES,
    IGNORED,
    SlideHits,
    froc,
    mnist_froc,
)
from sgpmil.evaluation.localisation.scored_slides import scored_slides
from tests.evaluation.instance_tables import instance_table, pairs

SLIDE = st.integers(0, 3).flatmap(
    lambda lesions: st.tuples(
        st.lists(
            st.tuples(
                st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)),
                st.sampled_from([IGNORED, -1, *range(lesions)]),
            ),
            max_size=15,
        ),
        st.just(lesions),
    )
)


def hits_of(slide):
    detections, lesions = slide
    return SlideHits(
        np.array([d[0] for d in detections], dtype=np.float64),
        np.array([d[1] for d in detections], dtype=np.int64),
        lesions,
    )


def points(slides):
    """(false positives a slide, sensitivity) at each threshold, by counting."""
    total = sum(lesions for _, lesions in slides)
    thresholds = sorted({s for detections, _ in slides for s, hit in detections if hit != IGNORED})
    curve = [(0.0, 0.0)]
    for t in reversed(thresholds):
        false = found = 0
        for detections, lesions in slides:
            false += sum(1 for s, hit in detections if hit == -1 and s >= t)
            found += sum(
                any(hit == lesion and s >= t for s, hit in detections) for lesion in range(lesions)
            )
        curve.append((false / len(slides), found / total))
    return curve


def at(curve, rate):
    """Sensitivity at a rate: the best reached with it, else on the line to the next point."""
    if any(x == rate for x, _ in curve):
        return max(y for x, y in curve if x == rate)
    below = max(((x, y) for x, y in curve if x < rate), key=lambda p: (p[0], p[1]))
    above = [(x, y) for x, y in curve if x > rate]
    if not above:
        return below[1]
    nearest = min(above, key=lambda p: (p[0], p[1]))
    share = (rate - below[0]) / (nearest[0] - below[0])
    return below[1] + share * (nearest[1] - below[1])


@settings(deadline=None)
@given(st.lists(SLIDE, min_size=1, max_size=5))
def test_against_a_loop(slides):
    found = froc([hits_of(slide) for slide in slides])
    total = sum(lesions for _, lesions in slides)
    assert found.num_lesions == total
    assert found.num_slides == len(slides)
    if total == 0:
        assert math.isnan(found.mean)
        assert all(math.isnan(value) for value in found.sensitivities)
        return
    curve = points(slides)
    traced = zip(found.false_positives.tolist(), found.sensitivity.tolist(), strict=True)
    # A second hit of a lesion is a threshold of the loop at which nothing changes.
    np.testing.assert_allclose(sorted(set(traced)), sorted(set(curve)))
    expected = [at(curve, rate) for rate in FALSE_POSITIVE_RATES]
    np.testing.assert_allclose(found.sensitivities, expected, atol=1e-9)
    assert found.mean == pytest.approx(np.mean(expected))


def test_by_hand():
    # Slide 1: two lesions, the first hit twice; an ignored hit costs nothing. Slide 2: normal.
    tumour = SlideHits(np.array([0.9, 0.8, 0.7, 0.6, 0.95]), np.array([0, 0, -1, 1, IGNORED]), 2)
    normal = SlideHits(np.array([0.85, 0.3]), np.array([-1, -1]), 0)
    found = froc([tumour, normal])
    np.testing.assert_allclose(found.false_positives, [0, 0, 0.5, 1, 1, 1.5])
    np.testing.assert_allclose(found.sensitivity, [0, 0.5, 0.5, 0.5, 1, 1])
    assert found.sensitivities == (0.5, 0.5, 1, 1, 1, 1)
    assert found.mean == pytest.approx(5 / 6)


def test_no_detections():
    nothing = SlideHits(np.zeros(0), np.zeros(0, dtype=np.int64), 2)
    assert froc([nothing]).mean == 0


def test_impossible_input():
    with pytest.raises(PredictionError, match="at least one slide"):
        froc([])
    with pytest.raises(PredictionError, match="got NaN"):
        froc([SlideHits(np.array([np.nan]), np.array([-1]), 1)])
    with pytest.raises(PredictionError, match="lesion below 1"):
        froc([SlideHits(np.array([0.5]), np.array([1]), 1)])


def test_published_area_of_instances():
    table = instance_table(10)
    found = mnist_froc(scored_slides(table, "attention"))
    areas, ceilings = [], []
    for p in table.predictions:
        if p.label == 0:
            continue
        values, positive = pairs(table)[p.slide_id]
        false, true, _ = roc_curve(positive, values)
        share = np.mean(~positive)
        areas.append(auc(false * share, true))
        ceilings.append(share)
    assert found.area == pytest.approx(np.mean(areas))
    assert found.ceiling == pytest.approx(np.mean(ceilings))
    assert found.num_bags == 5


def test_published_area_of_a_perfect_score_is_its_ceiling():
    table = instance_table(10)
    slides = scored_slides(table, "attention")
    perfect = [
        type(s)(s.slide_id, s.is_positive, s.positive * 1.0, s.scaled, s.scaled_std, s.positive)
        for s in slides
    ]
    found = mnist_froc(perfect)
    assert found.area == pytest.approx(found.ceiling)
    assert found.ceiling < 1
    nothing = mnist_froc([s for s in slides if not s.is_positive])
    assert nothing.num_bags == 0
    assert math.isnan(nothing.area)
