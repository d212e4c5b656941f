import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("shapely", reason="shapely is not installed: pip install '.[slides]'")

from sgpmil.errors import AnnotationError, PredictionError
from sgpmil.evaluation.localisation.instance_evaluation import InstanceOptions, evaluate_instances
from sgpmil.evaluation.localisation.lesion_detection import lesion_detection, mnist_froc
from sgpmil.evaluation.localisation.localisation import instance_uncertainty, localisation
from sgpmil.evaluation.localisation.pixel_protocol import pixel_protocol
from sgpmil.evaluation.localisation.scored_slides import InstanceLabeller, scored_slides
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.slides.annotations import open_annotations
from tests.evaluation.drawn_slides import drawn_folder, drawn_table
from tests.evaluation.instance_tables import instance_table
from tests.slides.annotations.drawings import rectangle, write_asap


@pytest.fixture
def folder(tmp_path):
    return open_annotations(drawn_folder(tmp_path))


def test_rows_of_every_fold(folder):
    folds = [
        (drawn_table(("t0", "n0", "t1")), drawn_table(("t2", "n1"))),
        (drawn_table(("t2", "n1")), None),
    ]
    options = InstanceOptions(min_coverage=0.0, pixels=True, seed=3)
    found = evaluate_instances(folds, folder, options, names=("a", "b"))
    labeller = InstanceLabeller(folder, min_coverage=0.0)
    expected = []
    for (test, validation), name in zip(folds, "ab", strict=True):
        one = labeller.label(test).table
        other = None if validation is None else labeller.label(validation).table
        expected.append((one, other, name))

    def text(rows):
        return [repr(row) for row in rows]  # NaN is not equal to itself

    rows = [row for t, v, f in expected for row in localisation(t, v, seed=3, fold=f)]
    assert text(found.localisation) == text(rows)
    rows = [row for t, v, f in expected for row in instance_uncertainty(t, v, fold=f)]
    assert text(found.uncertainty) == text(rows)
    rows = [row for t, _, f in expected for row in lesion_detection(t, folder, seed=3, fold=f)]
    assert text(found.lesions) == text(rows)
    rows = [row for t, _, f in expected for row in pixel_protocol(t, folder, seed=3, fold=f)]
    assert text(found.pixels) == text(rows)
    first = found.instance_froc[0]
    assert (first.fold, first.score) == ("a", "attention")
    assert first.froc == mnist_froc(scored_slides(expected[0][0], "attention"))
    assert len(found.instance_froc) == 6
    assert found.notes == ()


def test_labels_that_the_predictions_carry():
    table, validation = instance_table(8), instance_table(8, seed=3)
    found = evaluate_instances([(table, validation)])
    assert found.localisation == localisation(table, validation, fold="0")
    assert found.lesions == found.pixels == found.notes == ()
    best = InstanceOptions(threshold="best_on_test", criterion="f1")
    rows = evaluate_instances([(table, None)], options=best).localisation
    assert rows == localisation(table, threshold="best_on_test", criterion="f1", fold="0")


def test_options_reach_the_parts(folder):
    table = drawn_table()
    plain = evaluate_instances([(table, None)], folder)
    assert plain.pixels == ()
    assert len(plain.lesions) == 3
    none = evaluate_instances([(table, None)], folder, InstanceOptions(lesions=None))
    assert none.lesions == ()
    flipped = evaluate_instances([(table, None)], folder, InstanceOptions(positive_classes=(0,)))
    assert flipped.localisation[0].num_slides == 0


def test_notes(tmp_path, folder):
    write_asap(tmp_path / "n0.xml", [("Tumor", rectangle(0, 0, 30, 30))])
    write_asap(tmp_path / "t8.xml", [("Exclusion", rectangle(0, 0, 30, 30))])
    for k in range(6):
        write_asap(tmp_path / f"x{k}.xml", [])
    folds = [(drawn_table(("t0", "n0", "t9")), drawn_table(("t8", "t9", "t1", "t2")))] * 2
    found = evaluate_instances(folds, open_annotations(tmp_path))
    assert found.notes == (
        "Annotations of no predicted slide: x0, x1, x2, x3, x4 and 1 more (6).",
        "Positive slides without annotations, left out: t9 (1).",
        "Positive slides whose annotations have no positive region, left out: t8 (1).",
        "Negative slides whose annotations have a positive region, which is ignored: n0 (1).",
    )


def test_refusals(folder):
    table = drawn_table()
    with pytest.raises(AnnotationError, match=r"slides \(z0\) in .*, but got those of t0, t1, t2"):
        evaluate_instances([(drawn_table(("z0",)), None)], folder)
    bare = PredictionTable(
        tuple(replace(p, instances=None) for p in table.predictions), table.target
    )
    with pytest.raises(PredictionError, match="scores of instances, but got none in 1 folds"):
        evaluate_instances([(bare, None)], folder)
    with pytest.raises(PredictionError, match="got none in 0 folds"):
        evaluate_instances([], folder)
    with pytest.raises(PredictionError, match="instance labels or annotations, but got neither"):
        evaluate_instances([(table, None)])
    with pytest.raises(PredictionError, match="annotations for the pixel protocol"):
        evaluate_instances([(instance_table(4), None)], options=InstanceOptions(pixels=True))


def test_the_whole_on_drawn_slides(folder):
    found = evaluate_instances(
        [(drawn_table(("t0", "n0", "t1")), drawn_table(("t2", "n1")))], folder
    )
    attention = found.localisation[0]
    assert (attention.score, attention.scope) == ("attention", "per_slide")
    assert 0.8 < attention.auc < 1
    assert attention.num_slides == 2
    assert np.isfinite(attention.threshold)
    random = next(row for row in found.localisation if row.score == "random")
    assert random.auc < 0.7
    assert not math.isnan(random.f1)
