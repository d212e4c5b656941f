import pytest
import torch
from scipy.special import expit

from sgpmil.models.enough_samples import (
    MOST_DOUBLINGS,
    MOST_DRAWS,
    enough_samples,
    standard_error,
)


def sizes_of(*sizes):
    return torch.tensor(sizes)


class Coin:
    """Bags whose samples are certain of one class or of the other, with a given chance."""

    def __init__(self, chances, first=100):
        self.chances = torch.tensor(chances).double()
        self.first = first
        self.calls = []

    def __call__(self, doubling, chosen):
        self.calls.append((doubling, chosen.tolist()))
        count = self.first * (2**doubling // 2 or 1)
        generator = torch.Generator().manual_seed(doubling)  # the same for every bag
        uniform = torch.rand(count, generator=generator, dtype=torch.float64)
        heads = uniform < self.chances[chosen].unsqueeze(1)
        return torch.where(heads, 50.0, -50.0).unsqueeze(2) * torch.tensor([0.0, 1.0])


def test_standard_error_is_that_of_the_means_of_pairs():
    logits = torch.randn(3, 200, 2, generator=torch.Generator().manual_seed(0)).double()
    p = expit((logits[..., 1] - logits[..., 0]).numpy())
    pairs = (p[:, ::2] + p[:, 1::2]) / 2
    expected = pairs.std(axis=1, ddof=1) / 10
    assert standard_error(logits).numpy() == pytest.approx(expected)


def test_opposite_samples_have_no_error_though_each_is_uncertain():
    logits = torch.tensor([[[0.0, 3.0], [0.0, -3.0]] * 20])
    assert standard_error(logits).item() == pytest.approx(0, abs=1e-12)


def test_clear_bags_stop_first_and_torn_bags_go_on_to_the_end():
    draw = Coin([0.0, 0.02, 0.5])
    found = enough_samples(draw, sizes_of(9, 9, 9), error=0.01)
    # 50 pairs of a coin of .02 have the error .0140, 100 have .0099.
    assert found.num_different.tolist() == [100, 200, 100 * 2**MOST_DOUBLINGS]
    assert draw.calls[:3] == [(0, [0, 1, 2]), (1, [1, 2]), (2, [2])]
    assert found.logits.shape == (3, 100 * 2**MOST_DOUBLINGS, 2)
    assert found.logits.softmax(-1)[2, :, 1].mean().item() == pytest.approx(0.5, abs=0.03)


def test_repeats_leave_the_mean_as_it_was_and_nothing_depends_on_other_bags():
    together = enough_samples(Coin([0.0, 0.02, 0.5]), sizes_of(9, 9, 9), error=0.01)
    for number, chance in enumerate([0.0, 0.02, 0.5]):
        alone = enough_samples(Coin([chance]), sizes_of(9), error=0.01)
        assert alone.num_different[0] == together.num_different[number]
        own = together.logits[number, : alone.logits.shape[1]]
        assert torch.equal(own, alone.logits[0])
        means = [s.softmax(-1).mean(0) for s in (together.logits[number], alone.logits[0])]
        assert torch.allclose(*means, atol=1e-12)


def test_without_an_error_the_first_samples_are_all():
    draw = Coin([0.5])
    found = enough_samples(draw, sizes_of(9), error=0.0)
    assert found.logits.shape == (1, 100, 2)
    assert draw.calls == [(0, [0])]


def test_huge_bags_get_fewer_samples():
    sizes = sizes_of(MOST_DRAWS // 3200, MOST_DRAWS // 400, MOST_DRAWS)
    found = enough_samples(Coin([0.5, 0.5, 0.5]), sizes, error=0.001)
    assert found.num_different.tolist() == [3200, 400, 100]


def test_the_error_is_that_of_the_corrected_probabilities():
    def draw(doubling, chosen):
        count = 100 * (2**doubling // 2 or 1)
        generator = torch.Generator().manual_seed(doubling)
        odds = 5 + torch.randn(len(chosen), count, 1, generator=generator)
        return odds * torch.tensor([0.0, 1.0])

    shift = torch.tensor([5.0, 0.0])
    plain = enough_samples(draw, sizes_of(9), error=0.01)
    moved = enough_samples(draw, sizes_of(9), error=0.01, corrected=lambda logits: logits + shift)
    assert plain.num_different.tolist() == [100]
    assert moved.num_different.tolist() > [100]
