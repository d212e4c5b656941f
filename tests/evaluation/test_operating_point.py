import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_sensitivity_at_specificity

from sgpmil.errors import PredictionError
from sgpmil.evaluation.operating_point import sensitivity_at_specificity


def over_every_threshold(scores, positive, specificity):
    """Try every threshold, and one above all, with exact shares."""
    best = Fraction(0)
    for threshold in {*scores}:
        called = [score >= threshold for score in scores]
        hits = sum(c and p for c, p in zip(called, positive, strict=True))
        spared = sum(not c and not p for c, p in zip(called, positive, strict=True))
        if Fraction(spared, positive.count(False)) >= specificity:
            best = max(best, Fraction(hits, positive.count(True)))
    return float(best)


shares = st.sampled_from([Fraction(k, 20) for k in range(21)] + [Fraction(1, 3), Fraction(2, 7)])


@given(
    st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=50).filter(
        lambda rows: len({positive for _, positive in rows}) == 2
    ),
    shares,
)
def test_against_every_threshold(rows, specificity):
    scores, positive = (list(column) for column in zip(*rows, strict=True))
    found = sensitivity_at_specificity(
        np.array(scores, dtype=float), np.array(positive), float(specificity)
    )
    assert found == over_every_threshold(scores, positive, specificity)


@pytest.mark.parametrize("specificity", [0.5, 0.8, 0.95])
def test_against_torchmetrics(specificity):
    rng = np.random.default_rng(0)
    scores, positive = rng.random(500), rng.random(500) < 0.4
    scores[positive] = np.sqrt(scores[positive])
    expected, _ = binary_sensitivity_at_specificity(
        torch.tensor(scores), torch.tensor(positive, dtype=torch.long), specificity
    )
    found = sensitivity_at_specificity(scores, positive, specificity)
    assert found == pytest.approx(float(expected), abs=1e-6)
    assert 0 < found < 1


def test_a_share_that_is_reached_exactly_counts():
    # 19 of 20 negatives are below .5, which is .95; a positive that ties with one is not above it.
    negatives = np.concatenate([np.full(19, 0.1), [0.5]])
    positives = np.array([0.5, 0.1, 0.6, 0.05])
    scores = np.concatenate([negatives, positives])
    positive = np.arange(24) >= 20
    assert sensitivity_at_specificity(scores, positive) == 0.5
    assert sensitivity_at_specificity(scores, positive, 0.96) == 0.25


def test_nothing_is_specific_enough():
    scores, positive = np.array([0.2, 0.9]), np.array([True, False])
    assert sensitivity_at_specificity(scores, positive) == 0
    assert sensitivity_at_specificity(scores, positive, 0.0) == 1


@pytest.mark.parametrize(
    ("scores", "positive"),
    [([0.5, 0.2], [True] * 2), ([0.5], [False]), ([np.nan, 1], [True, False])],
)
def test_undefined(scores, positive):
    found = sensitivity_at_specificity(np.array(scores, dtype=float), np.array(positive))
    assert math.isnan(found)


@pytest.mark.parametrize("specificity", [-0.1, 1.1, math.nan, 95.0])
def test_not_a_share(specificity):
    with pytest.raises(PredictionError, match="between 0 and 1"):
        sensitivity_at_specificity(np.array([0.0, 1.0]), np.array([False, True]), specificity)
