import numpy as np
import pytest
import torch

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import SettingsError
from sgpmil.models.likelihood import probabilities
from sgpmil.models.prevalence import (
    ClassShares,
    expected_shares,
    prevalence_text,
    prior_shift,
    shares_text,
)

from .small import small_model

TWO = ClassTarget(("normal", "tumour"))
THREE = ClassTarget(("a", "b", "c"))
LABELS = [0] * 9 + [1]


def by_bayes(logits, drawn, expected):
    """Give p_c π_c / ρ_c, divided by its sum over classes."""
    odds = np.exp(logits) / np.asarray(drawn) * np.asarray(expected)
    return odds / odds.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("balanced", "prevalence", "expected"),
    [
        (True, "training", (0.9, 0.1)),
        (True, "balanced", (0.5, 0.5)),
        (True, 0.2, (0.8, 0.2)),
        (False, "training", (0.9, 0.1)),
        (False, "0.2", (0.8, 0.2)),
        (False, "balanced", (0.5, 0.5)),
        (True, {"tumour": 0.3, "normal": 0.7}, (0.7, 0.3)),
    ],
)
def test_probabilities_follow_bayes_rule_for_each_sample(balanced, prevalence, expected):
    model = small_model("abmil")
    model.shares = ClassShares.of_training(LABELS, TWO, prevalence, balanced=balanced)
    logits = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    drawn = (0.5, 0.5) if balanced else (0.9, 0.1)
    found = probabilities(model.target, model.corrected(logits)).numpy()
    np.testing.assert_allclose(found, by_bayes(logits.double().numpy(), drawn, expected), rtol=1e-5)


def test_the_prevalence_of_a_prediction_goes_before_that_of_the_model():
    model = small_model("abmil", num_classes=3)
    model.target = THREE
    model.shares = ClassShares.of_training([0, 0, 1, 2], THREE, "training", balanced=True)
    logits = torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(0))
    found = probabilities(THREE, model.corrected(logits, "c=0.2,a=0.5,b=0.3")).numpy()
    thirds = (1 / 3,) * 3
    np.testing.assert_allclose(
        found, by_bayes(logits.double().numpy(), thirds, (0.5, 0.3, 0.2)), rtol=1e-5
    )
    again = probabilities(model.target, model.corrected(logits)).numpy()
    np.testing.assert_allclose(
        again, by_bayes(logits.double().numpy(), thirds, (0.5, 0.25, 0.25)), rtol=1e-5
    )


def test_nothing_is_shifted_where_training_drew_what_is_expected():
    for balanced, prevalence in ((True, "balanced"), (False, "training"), (False, 0.1)):
        assert ClassShares.of_training(LABELS, TWO, prevalence, balanced=balanced).shift is None
    assert ClassShares.of_training([0, 1], TWO, "training", balanced=True).shift is None


def test_a_class_without_a_training_slide_keeps_its_logit():
    shares = ClassShares.of_training([0, 0, 0, 1], THREE, "training", balanced=True)
    assert shares.drawn == (0.5, 0.5, 0)
    np.testing.assert_allclose(shares.shift, [np.log(1.5), np.log(0.5), 0])


def test_a_model_without_shares_is_left_alone_or_taken_for_balanced():
    assert prior_shift(None, TWO) is None
    assert prior_shift(None, TWO, "balanced") is None
    np.testing.assert_allclose(prior_shift(None, TWO, 0.1), np.log([1.8, 0.2]))
    with pytest.raises(SettingsError, match="knows the class shares of its training slides"):
        prior_shift(None, TWO, "training")


@pytest.mark.parametrize(
    ("prevalence", "message"),
    [
        ("rare", r"a prevalence \('training', 'balanced', a share .*, but got 'rare'"),
        (0.0, "between 0 and 1, but got 0.0"),
        ("1.0", "between 0 and 1, but got 1.0"),
        ("nan", "between 0 and 1, but got nan"),
        ("normal=0.5,tumour=0.6", "add up to 1, but got normal=0.5,tumour=0.6"),
        ("normal=0.5,tumour=", "but got 'normal=0.5,tumour='"),
        ({"a, b": 0.5, "c": 0.5}, "names have no comma"),
    ],
)
def test_impossible_prevalences_are_refused(prevalence, message):
    with pytest.raises(SettingsError, match=message):
        prevalence_text(prevalence)


def test_prevalences_of_other_classes_are_refused():
    with pytest.raises(SettingsError, match=r"classes a, b, c, but got 0\.1\. Write a=…,b=…,c=…"):
        expected_shares(0.1, THREE)
    with pytest.raises(SettingsError, match="classes normal, tumour, but got shares for a, tumour"):
        expected_shares("a=0.5,tumour=0.5", TWO)


def test_shares_for_a_reader():
    assert shares_text((2 / 3, 1 / 3), TWO) == "normal 66.7 %, tumour 33.3 %"
    assert shares_text((0.9995, 0.0005), TWO) == "normal 100 %, tumour 0.05 %"
