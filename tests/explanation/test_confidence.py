import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import Prediction, PredictionTable
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.evaluation.uncertainty.conformal import fit_conformal
from sgpmil.evaluation.uncertainty.decisions import decide
from sgpmil.explanation.confidence import (
    SlideSet,
    confidence_words,
    run_sets,
    slide_sets,
    unlike_training,
)
from sgpmil.runs.material import RunMaterial
from sgpmil.runs.prediction_files import write_predictions
from sgpmil.runs.prediction_folder import read_prediction_sets, write_prediction_folder
from sgpmil.runs.run import Run

NAMES = ("a", "b", "c")
NO_SET = SlideSet(None, False, "")


def words(
    probs,
    std=0.0,
    own=NO_SET,
    model_share=0.0,
    posterior=True,
    between=math.nan,
    idle=False,
    unlike="",
):
    probs = np.asarray(probs, dtype=np.float64)
    entropy = float(-(probs[probs > 0] * np.log(probs[probs > 0])).sum())
    prediction = Prediction(
        "s",
        "s",
        None,
        probs,
        np.broadcast_to(np.asarray(std, dtype=np.float64), probs.shape).copy(),
        entropy,
        (1 - model_share) * entropy,
        model_share * entropy,
        disagreement=between * entropy,
    )
    return confidence_words(
        prediction,
        ClassTarget(NAMES[: len(probs)]),
        own,
        has_posterior=posterior,
        is_idle=idle,
        unlike=unlike,
    )


def test_the_model_is_not_called_sure_of_a_slide_unlike_those_of_training():
    assert words([0.99, 0.01]).level == "sure"
    found = words([0.99, 0.01], unlike="The slide is unlike the training slides (p = 0.02).")
    assert found.level == "leaning"
    assert found.reasons == ("The slide is unlike the training slides (p = 0.02).",)
    assert "too sure" in found.doubt


@pytest.mark.parametrize(
    ("p_value", "num_training", "is_said"),
    [
        (0.03, 44, False),
        (1 / 45, 44, True),
        (0.001, 1000, True),
        (0.02, 1000, False),
        (0.5, 1, False),
    ],
)
def test_slides_unlike_those_of_training_by_the_number_of_these(p_value, num_training, is_said):
    one = Prediction.from_samples("s", "s", None, np.array([[0.1, 0.9]]))
    one = replace(one, novelty_p=p_value, novel_share=0.4)
    origin = PredictionProvenance(novelty_slides=num_training)
    fold = TestedFold("0", PredictionTable((one,), ClassTarget(("a", "b")), origin))
    assert bool(unlike_training(fold, one)) == is_said
    other = replace(origin, other_features="patches of 512 pixels, where training had 256")
    fold = replace(fold, test=replace(fold.test, provenance=other))
    assert "512 pixels, where training had 256" in unlike_training(fold, one)


@pytest.mark.parametrize(("num_calibration", "has_set"), [(12, False), (30, True)])
def test_a_written_set_of_few_calibration_slides_is_not_shown(num_calibration, has_set):
    one = Prediction.from_samples("s", "s", None, np.array([[0.1, 0.9]]))
    origin = PredictionProvenance(coverage=0.8, num_calibration=num_calibration)
    fold = TestedFold("0", PredictionTable((one,), ClassTarget(("a", "b")), origin))
    (found,) = slide_sets(fold, 0.9, {"s": ("b",)})
    assert (found.names == ("b",)) == has_set
    assert ("80% of slides like the 30" if has_set else "12 calibration slides") in found.sentence


def test_an_idle_process_separates_no_doubt():
    assert "0% of the doubt is the model's own" in words([0.4, 0.6]).doubt
    idle = words([0.4, 0.6], idle=True)
    assert "cannot be separated" in idle.doubt
    assert idle.level == words([0.4, 0.6]).level


@pytest.mark.parametrize(
    ("probs", "between", "said"),
    [
        ([0.4, 0.6], 0.05, "they agree (disagreement 0.034 nats, 5% of the doubt)"),
        ([0.4, 0.6], 0.2, "they differ somewhat"),
        ([0.4, 0.6], 0.5, "they disagree (disagreement 0.337 nats, 50% of the doubt)"),
        ([0.01, 0.99], 0.5, "they agree"),  # of hardly any doubt, half is little
        ([0.0, 1.0], 0.0, "they agree (disagreement 0.000 nats, 0% of the doubt)"),
    ],
)
def test_models_that_predicted_together(probs, between, said):
    assert said in words(probs, between=between).disagreement
    assert words(probs).disagreement == ""


@pytest.mark.parametrize(
    ("probs", "std", "level"),
    [
        ([0.05, 0.95], 0.0, "sure"),
        ([0.05, 0.95], 0.025, "sure"),  # 0.95 − 2 · 0.025 = 0.90
        ([0.05, 0.95], 0.026, "leaning"),
        ([0.11, 0.89], 0.0, "leaning"),
        ([0.39, 0.61], 0.0, "leaning"),  # a lead of 0.22
        ([0.41, 0.59], 0.0, "undecided"),  # a lead of 0.18
        ([0.25, 0.75], 0.12, "leaning"),  # a lead of 0.50, and 2 (0.12 + 0.12) = 0.48
        ([0.25, 0.75], 0.13, "undecided"),
        ([0.5, 0.5], 0.0, "undecided"),
        ([0.2, 0.45, 0.35], 0.0, "undecided"),
        ([0.2, 0.6, 0.2], 0.0, "leaning"),
        ([0.0, 1.0, 0.0], 0.0, "sure"),
    ],
)
def test_the_level_follows_the_written_rule(probs, std, level):
    assert words(probs, std).level == level


def test_only_the_two_likeliest_classes_decide():
    probs = [0.7, 0.2, 0.1]
    assert words(probs, [0.1, 0.1, 0.9]).level == "leaning"  # 0.5 > 2 (0.1 + 0.1)
    assert words(probs, [0.1, 0.2, 0.0]).level == "undecided"  # 0.5 < 2 (0.1 + 0.2)


def test_a_set_of_several_classes_is_undecided_and_an_empty_one_never_sure():
    sure = [0.02, 0.98]
    assert words(sure, own=SlideSet(("b",), False, "")).level == "sure"
    several = words(sure, own=SlideSet(("a", "b"), False, ""))
    assert several.level == "undecided"
    assert several.reasons == ("The prediction set holds more than one class.",)
    empty = words(sure, own=SlideSet(("b",), True, ""))
    assert empty.level == "leaning"
    assert "less clear to the model than nearly all validation slides" in empty.reasons[0]


def test_spreads_that_mean_nothing_are_not_used():
    # NaN, as of predictions of another system.
    assert words([0.05, 0.95], math.nan, posterior=False).level == "sure"
    told = words([0.4, 0.6], math.nan, posterior=False)
    assert "cannot be separated" in told.doubt


@pytest.mark.parametrize(
    ("probs", "share", "told"),
    [
        ([0.01, 0.99], 0.5, "little doubt of either kind"),
        ([0.5, 0.5], 0.05, "Nearly all of the doubt lies in the slide (5% of"),
        ([0.5, 0.5], 0.2, "Most of the doubt lies in the slide, some in the model (20% of"),
        ([0.5, 0.5], 0.4, "Much of the doubt lies in the model (40% of"),
    ],
)
def test_doubt_is_of_the_data_or_of_the_model(probs, share, told):
    assert told in words(probs, model_share=share).doubt


def test_the_class_is_named():
    assert words([0.98, 0.02]).headline == "The model is sure of “a”."
    assert words([0.3, 0.7]).headline == "The model is leaning towards “b”."
    assert "“b” is only its likeliest class" in words([0.45, 0.55]).headline


def test_a_single_class_needs_no_second():
    assert words([1.0]).level == "sure"


CLASSES = ("normal", "tumour")


def table(name, high, labels):
    rows = [
        Prediction.from_samples(f"{name}{i}", f"case {name}{i}", label, np.array([[1 - p, p]]))
        for i, (p, label) in enumerate(zip(high, labels, strict=True))
    ]
    return PredictionTable(tuple(rows), ClassTarget(CLASSES))


@pytest.fixture
def fold():
    # Scores 1 − p of the label: .05, .10, …, .40 four times each, and .45 seven times; the
    # ⌈40 · .8⌉ = 32nd smallest is .40.
    steps = [k for k in range(1, 10) for _ in range(7 if k == 9 else 4)]
    validation = table("v", [1 - 0.05 * k for k in steps], [1] * len(steps))
    test = table("t", [0.61, 0.59, 0.39, 0.41, 0.95], [1, 1, 0, 0, None])
    return TestedFold("0", test, validation)


def test_sets_are_those_of_the_closed_form(fold):
    found = slide_sets(fold, 0.8)
    # A class is in the set from a probability of .60 on; without any, the likeliest stands alone.
    assert [one.names for one in found] == [
        ("tumour",),
        ("tumour",),
        ("normal",),
        ("normal",),
        ("tumour",),
    ]
    assert [one.was_empty for one in found] == [False, True, False, True, False]
    assert "about 80% of slides like the 39 validation slides" in found[0].sentence
    assert found[1].sentence.startswith("No class was likely enough for the set")


def test_a_larger_coverage_gives_larger_sets(fold):
    # ⌈40 · .9⌉ = 36: the threshold is .45.
    found = slide_sets(fold, 0.9)
    assert [one.was_empty for one in found] == [False] * 5
    unsure = replace(fold, test=table("t", [0.5], [1]), validation=table("v", [0.4] * 30, [1] * 30))
    assert slide_sets(unsure, 0.9)[0].names == CLASSES


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"validation": None}, "no labelled validation slides"),
        ({"validation": table("v", [0.9] * 29, [1] * 29)}, "29 validation slides are too few"),
        ({"validation": table("v", [0.9] * 9, [None] * 9)}, "no labelled validation slides"),
        ({"validation": table("t", [0.9] * 30, [1] * 30)}, "among the validation slides"),
    ],
)
def test_why_there_is_no_set(fold, change, said):
    found = slide_sets(replace(fold, **change), 0.9)
    assert {one.names for one in found} == {None}
    assert all(said in one.sentence for one in found)


def test_a_large_coverage_needs_many_slides(fold):
    found = slide_sets(fold, 0.99)
    assert {one.names for one in found} == {None}
    assert "needs at least 99 validation slides" in found[0].sentence


def test_another_slide_of_the_patient_spoils_the_promise(fold):
    first, *rest = fold.test.predictions
    shared = replace(first, case_id="case v3")
    found = slide_sets(
        replace(fold, test=PredictionTable((shared, *rest), ClassTarget(CLASSES))), 0.8
    )
    assert found[0].names is None
    assert "another of the patient" in found[0].sentence
    assert found[1].names is not None


def test_sets_that_were_written_with_predictions(fold, tmp_path):
    write_prediction_folder(tmp_path, fold.test.predictions, ClassTarget(CLASSES))
    assert read_prediction_sets(tmp_path, ClassTarget(CLASSES)) == {}
    decisions = decide(fold.test, fit_conformal(fold.validation, 0.8))
    write_predictions(tmp_path / "predictions.parquet", fold.test, decisions)
    stored = read_prediction_sets(tmp_path, ClassTarget(CLASSES))
    assert stored == {d.slide_id: d.prediction_set for d in decisions}
    found = slide_sets(replace(fold, validation=None), 0.8, stored)
    assert [one.names for one in found] == [d.prediction_set for d in decisions]
    assert "sgpmil predict --coverage" in found[0].sentence


def test_predictions_that_were_written_without_a_set(fold, tmp_path):
    write_prediction_folder(tmp_path, fold.test.predictions, ClassTarget(CLASSES))
    bare = replace(fold, validation=None)
    found = run_sets(RunMaterial(tmp_path, (bare,)), 0.9)["0"]
    assert {one.names for one in found} == {None}
    assert "sgpmil predict --coverage 0.9" in found[0].sentence
    assert "validation" not in found[0].sentence  # of which nothing is known
    # A run knows that it has none, and to predict again would not help.
    run = RunMaterial(tmp_path, (bare,), Run(tmp_path, {"folds": ["0"], "settings": {}}))
    assert "no labelled validation slides" in run_sets(run, 0.9)["0"][0].sentence


@pytest.mark.parametrize(
    ("names", "sets"),
    [
        (("T1|T2", "T3"), [("T1|T2",), ("T3",), ("T1|T2", "T3")]),
        (("a", "a|b", "c"), [("a",), ("a|b",), ("a", "a|b"), ("a|b", "c"), ("a", "a|b", "c")]),
        (("a|", "|b"), [("a|",), ("|b",), ("a|", "|b")]),
    ],
)
def test_names_of_classes_may_hold_the_separator(tmp_path, names, sets):
    written = pa.table(
        {
            "slide_id": [f"s{i}" for i in range(len(sets))],
            "prediction_set": ["|".join(s) for s in sets],
        }
    )
    pq.write_table(written, tmp_path / "predictions.parquet")
    assert list(read_prediction_sets(tmp_path, ClassTarget(names)).values()) == sets


def test_a_set_that_can_be_read_in_two_ways_is_not_guessed(fold, tmp_path):
    written = pa.table({"slide_id": ["t0", "t1"], "prediction_set": ["a|b", "b"]})
    pq.write_table(written, tmp_path / "predictions.parquet")
    stored = read_prediction_sets(tmp_path, ClassTarget(("a", "b", "a|b")))
    assert stored == {"t0": None, "t1": ("b",)}
    found = slide_sets(replace(fold, validation=None), 0.9, stored)
    assert found[0].names is None
    assert "cannot be separated" in found[0].sentence
