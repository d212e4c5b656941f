import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.bags.target import ClassTarget, OrdinalTarget
from sgpmil.errors import LabelError, PredictionError
from sgpmil.evaluation.metrics import slide_metrics
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import (
    PredictionTable,
    by_patient,
    patient_ids,
    without_patients,
)
from sgpmil.evaluation.uncertainty.measures import error_auroc

from .tables import random_scores, random_table, table_of

P = [0.25, 0.75]


def test_arrays_follow_the_rows():
    table = table_of([P, [0.9, 0.1]], [1, 0])
    np.testing.assert_array_equal(table.probs, [P, [0.9, 0.1]])
    np.testing.assert_array_equal(table.labels, [1, 0])
    np.testing.assert_array_equal(table.std, np.zeros((2, 2)))
    assert table.slide_ids == ("slide-000", "slide-001")
    assert (len(table), table.num_classes) == (2, 2)


def test_labelled_keeps_labels_only():
    table = table_of([P, P, P], [1, None, 0])
    with pytest.raises(PredictionError, match=r"1 of 3 have none.*labelled"):
        _ = table.labels
    kept = table.labelled()
    assert kept.slide_ids == ("slide-000", "slide-002")
    np.testing.assert_array_equal(kept.labels, [1, 0])
    empty = table_of([P], [None]).labelled()
    assert empty.probs.shape == (0, 2)


@pytest.mark.parametrize("label", [-1, 2])
def test_label_out_of_range(label):
    with pytest.raises(
        PredictionError, match=f"between 0 and 1 in the predictions, but got {label}"
    ):
        table_of([P], [label])


def test_duplicates_and_class_count():
    one = random_table(1).predictions[0]
    with pytest.raises(PredictionError, match="'0000' twice"):
        PredictionTable((one, one), ClassTarget(("a", "b")))
    with pytest.raises(PredictionError, match="Expected 3 probabilities"):
        PredictionTable((one,), ClassTarget(("a", "b", "c")))


def test_sum_tolerance():
    table_of([[0.5, 0.5009]], [0])
    with pytest.raises(PredictionError, match="sum to 1"):
        table_of([[0.5, 0.502]], [0])


def with_cases(table, cases):
    predictions = (replace(p, case_id=c) for p, c in zip(table.predictions, cases, strict=True))
    return PredictionTable(tuple(predictions), table.target)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 1000))
def test_against_a_loop(cases, seed):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(3), size=len(cases))
    table = with_cases(
        table_of(probs, [case % 3 for case in cases]), [f"patient {case}" for case in cases]
    )
    found = by_patient(table)
    order = list(dict.fromkeys(cases))
    assert found.slide_ids == tuple(f"patient {case}" for case in order)
    assert patient_ids(found) == found.slide_ids
    assert found.labels.tolist() == [case % 3 for case in order]
    for case, row in zip(order, found.predictions, strict=True):
        members = [p for p, own in zip(probs.tolist(), cases, strict=True) if own == case]
        mean = [math.fsum(column) / len(members) for column in zip(*members, strict=True)]
        np.testing.assert_allclose(row.probs, mean, atol=1e-14)
        expected = -math.fsum(p * math.log(p) for p in mean)
        assert row.entropy == pytest.approx(expected)
    assert found.class_names == table.class_names


def test_what_the_slides_do_not_tell_is_unknown():
    table = with_cases(random_table(5), ["a", "b", "a", "", "c"])
    labels = [0, 1, 0, 1, 1]
    table = PredictionTable(
        tuple(replace(p, label=y) for p, y in zip(table.predictions, labels, strict=True)),
        table.target,
    )
    a, b, blank, _ = by_patient(table).predictions
    assert np.isnan(a.std).all()
    assert math.isnan(a.expected_entropy)
    assert math.isnan(a.mutual_information)
    assert math.isfinite(a.entropy)
    one = table.predictions[1]
    assert b.std is one.std
    assert (b.entropy, b.expected_entropy) == (one.entropy, one.expected_entropy)
    assert b.mutual_information == one.mutual_information
    assert (blank.slide_id, blank.case_id) == ("0003", "0003")
    # A measure that is unknown for some patients orders none of them.
    assert math.isnan(error_auroc(by_patient(table), "mutual_information"))


def test_independent_slides_would_be_too_sure():
    # Two slides whose probabilities rise and fall together with the model: the mean varies as
    # much as each, not by a factor of √2 less. So no deviation is given from theirs alone.
    shift = np.random.default_rng(0).normal(0, 0.1, 400)
    samples = np.stack([0.5 - shift, 0.5 + shift], axis=1).clip(0, 1)
    samples /= samples.sum(axis=1, keepdims=True)
    slides = [Prediction.from_samples(name, "a", 1, samples) for name in ("1", "2")]
    truth = samples.std(axis=0, ddof=1)
    assumed = np.sqrt(sum(slide.std**2 for slide in slides)) / 2
    assert (assumed < 0.75 * truth).all()
    (patient,) = by_patient(PredictionTable(tuple(slides), ClassTarget(("n", "t")))).predictions
    assert np.isnan(patient.std).all()


def test_labels_of_a_patient():
    probs = [[0.5, 0.5]] * 3
    some = with_cases(table_of(probs, [None, 1, 1]), ["a", "a", "a"])
    assert by_patient(some).labels.tolist() == [1]
    none = with_cases(table_of(probs, [None, None, 1]), ["a", "a", "b"])
    assert [p.label for p in by_patient(none).predictions] == [None, 1]
    conflict = with_cases(table_of(probs, [0, None, 1], ("normal", "tumour")), ["a", "a", "a"])
    with pytest.raises(PredictionError, match=r"patient 'a' has 'normal' .*'tumour' \('slide-002'"):
        by_patient(conflict)


def test_instances_belong_to_a_slide():
    scores = random_scores()
    slides = [replace(p, instances=scores) for p in random_table(3).predictions]
    labels = [replace(p, label=0) for p in slides]
    table = with_cases(PredictionTable(tuple(labels), ClassTarget(("n", "t"))), ["a", "a", "b"])
    a, b = by_patient(table).predictions
    assert a.instances is None
    assert b.instances is scores


def test_each_slide_its_own_patient():
    table = table_of([[0.5, 0.5]] * 4, [0, 1, 0, 1])
    assert patient_ids(table) == ("case-0", "case-0", "case-1", "case-1")
    assert patient_ids(without_patients(table)) == table.slide_ids
    assert patient_ids(with_cases(table, ["x", "", "x", ""])) == (
        "x",
        "slide-001",
        "x",
        "slide-003",
    )
    assert without_patients(table).labels.tolist() == [0, 1, 0, 1]


def test_ordered_classes_carry_their_numbers_along():
    table = table_of([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], [0, 1], ("MT", "AT", "BT"))
    scores = random_scores(4, 3)
    with_scores = PredictionTable(
        (replace(table.predictions[0], instances=scores), table.predictions[1]), table.target
    )
    found = with_scores.ordered()
    assert found.target == OrdinalTarget(("BT", "AT", "MT"))
    np.testing.assert_array_equal(found.probs, table.probs[:, ::-1])
    assert found.labels.tolist() == [2, 1]
    instances = found.predictions[0].instances
    np.testing.assert_array_equal(instances.evidence_mean, scores.evidence_mean[:, ::-1])
    np.testing.assert_array_equal(instances.attention_mean, scores.attention_mean)
    # Kappa depends on the order: a far error costs more than a near one.
    assert slide_metrics(found).kappa == pytest.approx(2 / 3)
    assert slide_metrics(table.ordered(("AT", "MT", "BT"))).kappa == pytest.approx(-1 / 3)
    with pytest.raises(LabelError, match="among the classes BT, AT, but got 'MT'"):
        table.ordered(("BT", "AT"))
    with pytest.raises(LabelError, match="order of the 3 classes MT, AT, BT, but got 4 names"):
        table.ordered(("BT", "AT", "MT", "XT"))
