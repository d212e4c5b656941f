import math

import numpy as np
import pytest

from sgpmil.evaluation import Prediction
from sgpmil.report.pages.prediction_sets import SlideSet
from sgpmil.report.pages.wording import confidence_words

NAMES = ("a", "b", "c")
NO_SET = SlideSet(None, False, "")


def words(probs, std=0.0, own=NO_SET, model_share=0.0, posterior=True):
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
    )
    return confidence_words(prediction, NAMES[: len(probs)], own, has_posterior=posterior)


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
    assert "cannot be told apart" in told.doubt


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
