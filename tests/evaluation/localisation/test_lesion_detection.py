import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("shapely", reason="shapely is not installed: pip install 'sgpmil[slides]'")

from sgpmil.errors import PredictionError
from sgpmil.evaluation.localisation.lesion_detection import LesionSettings, lesion_detection
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.slides.annotations import open_annotations
from sgpmil.slides.annotations.regions import bracs_rule
from tests.evaluation.drawn_slides import COORDS, drawn_folder, drawn_table, is_tumour, prediction
from tests.slides.annotations.drawings import feature, rectangle, write_geojson

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
    more = PredictionTable((*table.predictions, unlabelled), table.class_names)
    found = lesion_detection(more, folder)[0].froc
    assert found.num_slides == 3
    assert found.num_lesions == 1


def test_certain_slides_without_lesions_cost_nothing_when_their_probability_is_zero(folder):
    table = drawn_table(("t0", "t1", "t2", "n0"))

    def sure(p):
        return replace(p, probs=np.array([1.0, 0.0]) if p.label == 0 else np.array([0.0, 1.0]))

    knowing = PredictionTable(tuple(map(sure, table.predictions)), table.class_names)
    alone = drawn_table(("t0", "t1", "t2"))
    alone = PredictionTable(tuple(map(sure, alone.predictions)), table.class_names)
    with_normal, without = (lesion_detection(t, folder)[0].froc for t in (knowing, alone))
    # The same detections above 0, over four slides instead of three.
    positive = without.false_positives < without.false_positives.max()
    np.testing.assert_allclose(
        with_normal.false_positives[: positive.sum()], without.false_positives[positive] * 3 / 4
    )


def test_no_curve(tmp_path, folder):
    with pytest.raises(PredictionError, match="coordinates and a patch size for 't0'"):
        lesion_detection(drawn_table(coords=None), folder)
    nothing = PredictionTable((replace(prediction("t0", 1), instances=None),), ("a", "b"))
    row = lesion_detection(nothing, folder)[0]
    assert row.froc is None
    assert row.note == "No slide has instance scores."
    normal = lesion_detection(drawn_table(("n0", "n1")), folder)[0].froc
    assert normal.num_lesions == 0
    assert math.isnan(normal.mean)
    write_geojson(tmp_path / "b0.geojson", [feature([rectangle(0, 0, 20, 10)], "DCIS")])
    bracs = open_annotations(tmp_path, bracs_rule)
    table = PredictionTable((prediction("b0", 1),), ("BT", "MT"))
    row = lesion_detection(table, bracs)[0]
    assert row.froc is None
    assert "false alarms cannot be counted" in row.note
