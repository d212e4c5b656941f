import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import SettingsError
from sgpmil.models.likelihood import (
    LIKELIHOODS,
    class_log_odds,
    log_odds_moments,
    negative_log_likelihood,
)

TARGET = ClassTarget(("no", "yes"))


def directly(logits, labels, likelihood):
    """The formulas, a bag and a sample at a time, in Python's own arithmetic."""

    def prob(sample, label):
        powers = [math.exp(value) for value in sample]
        return powers[label] / sum(powers)

    losses = []
    for samples, label in zip(logits.tolist(), labels.tolist(), strict=True):
        probs = [prob(sample, label) for sample in samples]
        if likelihood == "mean_log_prob":
            losses.append(-sum(map(math.log, probs)) / len(probs))
        elif likelihood == "log_mean_prob":
            losses.append(-math.log(sum(probs) / len(probs)))
        else:
            average = [sum(column) / len(samples) for column in zip(*samples, strict=True)]
            losses.append(-math.log(prob(average, label)))
    return sum(losses) / len(losses)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(2, 5), st.integers(0, 99))
def test_formulas_and_jensens_order(num_bags, num_samples, num_classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_bags, num_samples, num_classes, generator=generator).double()
    labels = torch.randint(num_classes, (num_bags,), generator=generator)
    target = ClassTarget.numbered(num_classes)
    losses = {n: negative_log_likelihood(target, logits, labels, n).item() for n in LIKELIHOODS}
    for name, loss in losses.items():
        assert loss == pytest.approx(directly(logits, labels, name), rel=1e-10)
    assert losses["mean_log_prob"] >= losses["log_mean_prob"] - 1e-12
    assert losses["mean_log_prob"] >= losses["mean_logits"] - 1e-12


def test_forms_differ_for_samples_that_disagree_and_agree_for_one():
    logits = torch.tensor([[[4.0, 0.0], [0.0, 4.0]]]).double()
    values = {
        name: negative_log_likelihood(TARGET, logits, torch.tensor([0]), name).item()
        for name in LIKELIHOODS
    }
    assert values["mean_logits"] == pytest.approx(math.log(2))
    assert values["log_mean_prob"] == pytest.approx(math.log(2))
    assert values["mean_log_prob"] == pytest.approx(2 + math.log(1 + math.exp(-4)))
    label = torch.tensor([0])
    one = {negative_log_likelihood(TARGET, logits[:, :1], label, n).item() for n in LIKELIHOODS}
    assert max(one) - min(one) < 1e-12


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_extreme_logits_stay_finite(likelihood):
    logits = torch.tensor([[[1e4, -1e4], [1e4, -1e4]]], requires_grad=True)
    loss = negative_log_likelihood(TARGET, logits, torch.tensor([1]), likelihood)
    assert loss.item() == pytest.approx(2e4)
    loss.backward()
    assert logits.grad.isfinite().all()


def test_unknown_likelihood_lists_the_known():
    with pytest.raises(SettingsError, match=r"one of mean_log_prob, .* but got 'elbo'"):
        negative_log_likelihood(TARGET, torch.zeros(1, 1, 2), torch.tensor([0]), "elbo")


@pytest.mark.parametrize(("num_classes", "tolerance"), [(2, 0.01), (3, 0.05)])
def test_moments_of_log_odds_are_those_of_many_draws(num_classes, tolerance):
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(5, num_classes))
    std = 0.5 * rng.random((5, num_classes)) + 0.1
    drawn = torch.tensor(mean + std * rng.normal(size=(400_000, 5, num_classes)))
    odds, probs = class_log_odds(drawn), drawn.softmax(-1)
    ours = log_odds_moments(torch.tensor(mean), torch.tensor(std))
    # Of more than two classes the log-odds are not normal: they are to first order.
    assert torch.allclose(ours[0], odds.mean(0), atol=tolerance)
    assert torch.allclose(ours[1], odds.std(0), atol=tolerance)
    assert torch.allclose(ours[2], probs.mean(0), atol=tolerance / 5)
