import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, roc_curve

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.localisation.lesion_detection import (
    FALSE_POSITIVE_RATES,
    IGNORED,
    LesionSettings,
    SlideHits,
    find_detections,
    froc,
    lesion_detection,
    mnist_froc,
)
from sgpmil.evaluation.localisation.scored_slides import scored_slides
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.slides.annotations import open_annotations
from sgpmil.slides.annotations.regions import bracs_rule
from tests.evaluation.drawn_slides import COORDS, drawn_folder, drawn_table, is_tumour, prediction
from tests.evaluation.instance_tables import instance_table, pairs
from tests.slides.annotations.drawings import feature, rectangle, write_geojson


def suppressed(scores, centres, radius):
    """Greedy non-maximum suppression over a list."""
    left = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    kept = []
    while left:
        best = left.pop(0)
        kept.append(best)
        left = [i for i in left if np.hypot(*(centres[i] - centres[best])) > radius]
    return kept


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.1, 0.5, 0.5, 0.9, 1.0]), st.integers(0, 8), st.integers(0, 8)
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([1.0, 10.0, 14.2, 25.0, 1000.0]),
)
def test_detections_against_a_loop(patches, radius):
    scores = np.array([patch[0] for patch in patches])
    coords = np.array([patch[1:] for patch in patches]) * 10
    found = find_detections(scores, coords, 10, radius)
    centres = coords + 5.0
    kept = suppressed(scores, centres, radius)
    np.testing.assert_array_equal(found.scores, scores[kept])
    np.testing.assert_array_equal(found.points, centres[kept])


def test_radius_zero_keeps_every_patch():
    scores, coords = np.array([0.2, 0.9, 0.2]), np.array([[0, 0], [0, 0], [64, 0]])
    found = find_detections(scores, coords, 64, 0.0)
    np.testing.assert_array_equal(found.scores, [0.9, 0.2, 0.2])
    np.testing.assert_array_equal(found.points, [[32, 32], [32, 32], [96, 32]])
    with pytest.raises(PredictionError, match="radius of at least 0"):
        find_detections(scores, coords, 64, -1.0)


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
def test_froc_against_a_loop(slides):
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


pytest.importorskip("shapely", reason="shapely is not installed: pip install '.[slides]'")


LESIONS = {"t0": ["t0"], "t1": ["left", "right"], "t2": ["t2"]}


def lesion_of(slide_id, x, y):
    if slide_id == "t0" and 20 <= x <= 60 and 10 <= y <= 40:
        return "t0"  # with its hole filled
    if not is_tumour(slide_id, x, y):
        return None
    return ("left" if x < 30 else "right") if slide_id == "t1" else slide_id


def by_hand(table, values_of, radius):
    """Mean sensitivity at the six rates, by loops over detections and thresholds."""
    alarms, best = [], {(s, name): -1.0 for s in LESIONS for name in LESIONS[s]}
    for p in table.predictions:
        values = values_of(p)
        values = (values - values.min()) / (values.max() - values.min()) * p.probs[1]
        left = list(np.argsort(-values, kind="stable"))
        while left:
            top = left.pop(0)
            centre = COORDS[top] + 5
            left = [i for i in left if np.hypot(*(COORDS[i] + 5 - centre)) > radius]
            hit = lesion_of(p.slide_id, *centre)
            if hit is None:
                alarms.append(values[top])
            else:
                best[p.slide_id, hit] = max(best[p.slide_id, hit], values[top])
    curve = [(0.0, 0.0)]
    for t in sorted({*alarms, *best.values()} - {-1.0}, reverse=True):
        rate = sum(a >= t for a in alarms) / len(table)
        curve.append((rate, sum(b >= t for b in best.values()) / len(best)))
    x, y = zip(*curve, strict=True)
    return np.mean(np.interp([0.25, 0.5, 1, 2, 4, 8], x, y))


@pytest.fixture
def folder(tmp_path):
    return open_annotations(drawn_folder(tmp_path))


@pytest.mark.parametrize("radius", [1.0, 2.0, 3.5])
def test_against_loops(folder, radius):
    table = drawn_table()
    rows = lesion_detection(table, folder, LesionSettings(radius=radius), fold="f")
    assert [row.score for row in rows] == ["attention", "uniform", "random"]
    attention = rows[0]
    expected = by_hand(table, lambda p: p.instances.attention_mean, radius * 10)
    assert attention.froc.mean == pytest.approx(expected)
    assert attention.froc.num_lesions == 4
    assert attention.froc.num_slides == 5
    assert (attention.fold, attention.note) == ("f", "")
    assert rows[2].froc.mean < attention.froc.mean


def test_small_lesions_do_not_count(folder):
    table = drawn_table()
    everything = lesion_detection(table, folder)[0].froc
    larger = lesion_detection(table, folder, LesionSettings(min_diameter=12.0))[0].froc
    assert (everything.num_lesions, larger.num_lesions) == (4, 3)
    # A detection in one that does not count is no false alarm either. Every patch is one here.
    every = LesionSettings(radius=0.5, min_diameter=12.0)
    curve = lesion_detection(drawn_table(("t1", "t2")), folder, every)[0].froc
    outside = sum(lesion_of(name, *(c + 5)) is None for name in ("t1", "t2") for c in COORDS)
    assert curve.num_lesions == 2
    assert curve.false_positives[-1] == outside / 2
    merged = lesion_detection(table, folder, LesionSettings(merge_distance=75.0))[0].froc
    assert merged.num_lesions == 3
    camelyon = LesionSettings.camelyon16(mpp=0.25)
    assert (camelyon.merge_distance, camelyon.min_diameter) == (300, 1100)


def test_which_slides_count(folder):
    table = drawn_table(("t0", "t9", "n0", "n1"))
    unlabelled = replace(prediction("t1", 1), label=None)
    more = PredictionTable((*table.predictions, unlabelled), table.target)
    found = lesion_detection(more, folder)[0].froc
    assert found.num_slides == 3
    assert found.num_lesions == 1


def test_certain_slides_without_lesions_cost_nothing_when_their_probability_is_zero(folder):
    table = drawn_table(("t0", "t1", "t2", "n0"))

    def sure(p):
        return replace(p, probs=np.array([1.0, 0.0]) if p.label == 0 else np.array([0.0, 1.0]))

    knowing = PredictionTable(tuple(map(sure, table.predictions)), table.target)
    alone = drawn_table(("t0", "t1", "t2"))
    alone = PredictionTable(tuple(map(sure, alone.predictions)), table.target)
    with_normal, without = (lesion_detection(t, folder)[0].froc for t in (knowing, alone))
    # The same detections above 0, over four slides instead of three.
    positive = without.false_positives < without.false_positives.max()
    np.testing.assert_allclose(
        with_normal.false_positives[: positive.sum()], without.false_positives[positive] * 3 / 4
    )


def test_no_curve(tmp_path, folder):
    with pytest.raises(PredictionError, match="coordinates and a patch size for 't0'"):
        lesion_detection(drawn_table(coords=None), folder)
    nothing = PredictionTable(
        (replace(prediction("t0", 1), instances=None),), ClassTarget(("a", "b"))
    )
    row = lesion_detection(nothing, folder)[0]
    assert row.froc is None
    assert row.note == "No slide has instance scores."
    normal = lesion_detection(drawn_table(("n0", "n1")), folder)[0].froc
    assert normal.num_lesions == 0
    assert math.isnan(normal.mean)
    write_geojson(tmp_path / "b0.geojson", [feature([rectangle(0, 0, 20, 10)], "DCIS")])
    bracs = open_annotations(tmp_path, bracs_rule)
    table = PredictionTable((prediction("b0", 1),), ClassTarget(("BT", "MT")))
    row = lesion_detection(table, bracs)[0]
    assert row.froc is None
    assert "false alarms cannot be counted" in row.note
