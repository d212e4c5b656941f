from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import AnnotationError, PredictionError
from sgpmil.evaluation.localisation.scored_slides import (
    InstanceLabeller,
    available_scores,
    groups_of,
    min_max,
    scored_slides,
    slide_annotations,
)
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.slides.annotations import bracs_rule, open_annotations
from sgpmil.slides.annotations import folder as annotation_folder
from tests.evaluation.drawn_slides import COORDS, drawn_folder, drawn_table, prediction, truth
from tests.evaluation.instance_tables import instance_table, pairs
from tests.slides.annotations.drawings import feature, rectangle, write_asap, write_geojson


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
@pytest.mark.parametrize("kind", ["attention", "evidence", "single"])
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
    backwards = PredictionTable(table.predictions[::-1], table.target)
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
    more = PredictionTable((*table.predictions, *odd), table.target)
    assert [s.slide_id for s in scored_slides(more, "attention")] == list(table.slide_ids)
    bare = replace(
        p, slide_id="e", instances=replace(p.instances, evidence_mean=None, evidence_std=None)
    )
    mixed = PredictionTable((*table.predictions, bare), table.target)
    assert len(scored_slides(mixed, "attention")) == 5
    assert len(scored_slides(mixed, "evidence")) == 4
    assert available_scores(mixed) == ("attention", "evidence", "single", "uniform", "random")
    alone = PredictionTable((bare,), table.target)
    assert available_scores(alone) == ("attention", "single", "uniform", "random")
    # Novelty is not for a class: it is not measured against the labels of instances.
    old = replace(bare.instances, single_mean=None, single_std=None, novelty=np.ones(len(none)))
    alone = PredictionTable((replace(bare, instances=old),), table.target)
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


pytest.importorskip("shapely", reason="shapely is not installed: pip install '.[slides]'")


@pytest.fixture
def folder(tmp_path):
    return open_annotations(drawn_folder(tmp_path))


def test_labels_of_instances(folder):
    table = drawn_table()
    found = InstanceLabeller(folder).label(table)
    assert found.annotated == ("t0", "t1", "t2")
    assert found.without_annotations == found.without_positive_region == found.contradicted == ()
    assert found.table.slide_ids == table.slide_ids
    for p, before in zip(found.table.predictions, table.predictions, strict=True):
        np.testing.assert_array_equal(p.instances.instance_labels, truth(p.slide_id))
        np.testing.assert_array_equal(p.instances.attention_mean, before.instances.attention_mean)
        np.testing.assert_array_equal(p.probs, before.probs)


def test_min_coverage(folder):
    # Patches moved by half a patch are half in, half out at the edges.
    table = drawn_table(("t2",), coords=COORDS + 5)

    def count(min_coverage):
        labelled = InstanceLabeller(folder, min_coverage).label(table).table
        return int(labelled.predictions[0].instances.instance_labels.sum())

    assert [count(share) for share in (0.0, 0.25, 0.26)] == [4, 4, 0]


def test_slides_without_a_word(folder, tmp_path):
    write_asap(tmp_path / "t8.xml", [("Exclusion", rectangle(0, 0, 30, 30))])
    write_asap(tmp_path / "n0.xml", [("Tumor", rectangle(0, 0, 30, 30))])
    opened = open_annotations(tmp_path)
    unlabelled = replace(prediction("t0", 1), slide_id="u", label=None)
    bare = replace(prediction("t0", 1), slide_id="b", instances=None)
    own = prediction("t9", 1, instance_labels=np.ones(len(COORDS), dtype=np.int64))
    rows = (own, prediction("t8", 1), prediction("n0", 0), unlabelled, bare)
    found = InstanceLabeller(opened).label(PredictionTable(rows, ClassTarget(("normal", "tumour"))))
    assert found.annotated == ()
    assert found.without_annotations == ("t9",)
    assert found.without_positive_region == ("t8",)
    assert found.contradicted == ("n0",)
    labels = [p.instances and p.instances.instance_labels for p in found.table.predictions]
    assert [set(one.tolist()) for one in labels[:3]] == [{-1}, {-1}, {0}]
    assert labels[3:] == [None, None]


def test_negative_slides_need_no_coordinates_and_positive_ones_do(folder):
    rows = (prediction("n0", 0, coords=None, patch_size=None), prediction("t9", 1, coords=None))
    table = PredictionTable(rows, ClassTarget(("normal", "tumour")))
    found = InstanceLabeller(folder).label(table).table
    assert found.predictions[0].instances.instance_labels.tolist() == [0] * len(COORDS)
    with pytest.raises(PredictionError, match="with coordinates to compare 't0'"):
        InstanceLabeller(folder).label(drawn_table(("t0",), coords=None))
    with pytest.raises(PredictionError, match="with a patch size to compare 't0'"):
        InstanceLabeller(folder).label(drawn_table(("t0",), patch_size=None))


def test_annotations_are_read_once_unless_the_patches_differ(folder, monkeypatch):
    read = []

    def counted(path, *arguments, **options):
        read.append(path.stem)
        return original(path, *arguments, **options)

    original = annotation_folder.read_annotations
    monkeypatch.setattr(annotation_folder, "read_annotations", counted)
    labeller = InstanceLabeller(folder)
    first = labeller.label(drawn_table())
    again = labeller.label(drawn_table())
    assert read == ["t0", "t1", "t2"]
    for a, b in zip(first.table.predictions, again.table.predictions, strict=True):
        np.testing.assert_array_equal(a.instances.instance_labels, b.instances.instance_labels)
    moved = labeller.label(drawn_table(("t0",), coords=COORDS + 300)).table.predictions[0]
    assert read == ["t0", "t1", "t2", "t0"]
    assert not moved.instances.instance_labels.any()


def test_classes_of_bracs(tmp_path):
    for name in ("a", "b", "c"):
        write_geojson(
            tmp_path / f"{name}.geojson",
            [
                feature([rectangle(0, 0, 20, 10)], "DCIS"),
                feature([rectangle(20, 0, 50, 10)], "FEA"),
                feature([rectangle(50, 0, 60, 10)], "PB"),
            ],
        )
    folder = open_annotations(tmp_path, bracs_rule)
    probs = np.array([[0.2, 0.3, 0.5]])
    rows = tuple(
        replace(prediction(name, label), probs=probs[0], std=probs[0])
        for name, label in (("a", 0), ("b", 1), ("c", 2))
    )
    table = PredictionTable(rows, ClassTarget(("AT", "BT", "MT")))
    found = InstanceLabeller(folder, positive_classes=(0, 2)).label(table)
    assert found.annotated == ("a", "c")
    assert found.contradicted == ()
    counts = [
        [int((p.instances.instance_labels == y).sum()) for y in (1, 0, -1)]
        for p in found.table.predictions
    ]
    total = len(COORDS)
    assert counts == [[3, 3, total - 6], [0, total, 0], [2, 4, total - 6]]
    wrong = PredictionTable(rows, ClassTarget(("one", "two", "three")))
    with pytest.raises(AnnotationError, match="but got 'one'"):
        InstanceLabeller(folder, positive_classes=(0, 2)).label(wrong)


def test_annotations_of_a_slide(folder):
    table = drawn_table()
    t0, n0 = table.predictions[:2]
    assert slide_annotations(table, t0, folder).positive_area().area == 1200 - 100
    assert slide_annotations(table, n0, folder) is None
    assert slide_annotations(table, replace(t0, label=None), folder) is None
