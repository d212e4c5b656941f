from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("shapely", reason="shapely is not installed: pip install 'sgpmil[slides]'")

from sgpmil.errors import AnnotationError, PredictionError
from sgpmil.evaluation.localisation.annotated import InstanceLabeller, slide_annotations
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.slides.annotations import bracs_rule, open_annotations
from sgpmil.slides.annotations import folder as annotation_folder
from tests.evaluation.drawn_slides import COORDS, drawn_folder, drawn_table, prediction, truth
from tests.slides.annotations.drawings import feature, rectangle, write_asap, write_geojson


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
    found = InstanceLabeller(opened).label(PredictionTable(rows, ("normal", "tumour")))
    assert found.annotated == ()
    assert found.without_annotations == ("t9",)
    assert found.without_positive_region == ("t8",)
    assert found.contradicted == ("n0",)
    labels = [p.instances and p.instances.instance_labels for p in found.table.predictions]
    assert [set(one.tolist()) for one in labels[:3]] == [{-1}, {-1}, {0}]
    assert labels[3:] == [None, None]


def test_negative_slides_need_no_coordinates_and_positive_ones_do(folder):
    rows = (prediction("n0", 0, coords=None, patch_size=None), prediction("t9", 1, coords=None))
    table = PredictionTable(rows, ("normal", "tumour"))
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
    table = PredictionTable(rows, ("AT", "BT", "MT"))
    found = InstanceLabeller(folder, positive_classes=(0, 2)).label(table)
    assert found.annotated == ("a", "c")
    assert found.contradicted == ()
    counts = [
        [int((p.instances.instance_labels == y).sum()) for y in (1, 0, -1)]
        for p in found.table.predictions
    ]
    total = len(COORDS)
    assert counts == [[3, 3, total - 6], [0, total, 0], [2, 4, total - 6]]
    wrong = PredictionTable(rows, ("one", "two", "three"))
    with pytest.raises(AnnotationError, match="but got 'one'"):
        InstanceLabeller(folder, positive_classes=(0, 2)).label(wrong)


def test_annotations_of_a_slide(folder):
    table = drawn_table()
    t0, n0 = table.predictions[:2]
    assert slide_annotations(table, t0, folder).positive_area().area == 1200 - 100
    assert slide_annotations(table, n0, folder) is None
    assert slide_annotations(table, replace(t0, label=None), folder) is None
