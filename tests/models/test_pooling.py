import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.errors import SettingsError
from sgpmil.models.pooling import (
    POOLINGS,
    _pool_at_once,
    bag_softmax,
    pool,
    pool_values,
    pooling_weights,
)

sizes_of_bags = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def packed(sizes, *, num_samples=3, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(num_samples, sum(sizes), generator=generator).double()
    index = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return values, index


@settings(max_examples=40, deadline=None)
@given(sizes_of_bags, st.sampled_from([1.0, 1e2, 1e4]), st.integers(0, 99))
def test_softmax_is_torchs_bag_by_bag(sizes, scale, seed):
    values, index = packed(sizes, scale=scale, seed=seed)
    expected = torch.cat([v.softmax(dim=1) for v in values.split(sizes, dim=1)], dim=1)
    assert torch.allclose(bag_softmax(values, index, len(sizes)), expected, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_of_extreme_values(dtype):
    values = torch.tensor([[1e4, 1e4, -1e4, -1e4, -1e4, 0.0]], dtype=dtype)
    index = torch.tensor([0, 0, 0, 1, 1, 2])
    expected = torch.tensor([[0.5, 0.5, 0.0, 0.5, 0.5, 1.0]], dtype=dtype)
    result = bag_softmax(values, index, 3)
    assert torch.equal(result, expected)
    assert result.dtype == dtype


def test_softmax_gradient():
    values, index = packed([2, 3], num_samples=2)
    assert torch.autograd.gradcheck(
        lambda v: bag_softmax(v, index, 2), values.requires_grad_(), fast_mode=True
    )


@settings(max_examples=40, deadline=None)
@given(sizes_of_bags, st.integers(0, 99))
def test_weights_and_their_sums(sizes, seed):
    values, index = packed(sizes, seed=seed)
    attention, lengths = values.sigmoid(), torch.tensor(sizes)
    bags = list(zip(sizes, attention.split(sizes, dim=1), strict=True))
    total = torch.stack([a.sum(1) for _, a in bags], dim=1)
    expected = {
        "sum": torch.cat([a for _, a in bags], dim=1),
        "mean": torch.cat([a / n for n, a in bags], dim=1),
        "normalised": torch.cat([a / a.sum(1, keepdim=True) for _, a in bags], dim=1),
    }
    sums = {"sum": total, "mean": total / lengths, "normalised": torch.ones_like(total)}
    for pooling in POOLINGS:
        weights = pooling_weights(attention, index, lengths, pooling)
        assert torch.allclose(weights, expected[pooling], atol=1e-14)
        found = torch.stack([w.sum(1) for w in weights.split(sizes, dim=1)], dim=1)
        assert torch.allclose(found, sums[pooling])


def test_normalised_weights_of_vanished_attention_are_finite():
    attention = torch.zeros(1, 3, requires_grad=True)
    weights = pooling_weights(attention, torch.zeros(3).long(), torch.tensor([3]), "normalised")
    assert torch.equal(weights, torch.zeros(1, 3))


def test_unknown_pooling_lists_the_known():
    with pytest.raises(SettingsError, match="one of sum, mean, normalised, but got 'max'"):
        pooling_weights(torch.ones(1, 1), torch.zeros(1).long(), torch.tensor([1]), "max")


@settings(max_examples=40, deadline=None)
@given(sizes_of_bags, st.integers(0, 99))
def test_pool_is_the_weighted_sum(sizes, seed):
    weights, index = packed(sizes, seed=seed)
    embeddings = torch.randn(
        sum(sizes), 4, generator=torch.Generator().manual_seed(seed + 1)
    ).double()
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    member = torch.nn.functional.one_hot(index, len(sizes)).double()
    expected = torch.einsum("st,th,tb->bsh", weights, embeddings, member)
    assert torch.allclose(pool(weights, embeddings, offsets), expected, atol=1e-12)


def test_few_columns_are_pooled_at_once_as_bag_by_bag(rng):
    weights = torch.from_numpy(rng.random((3, 9)))
    values = torch.from_numpy(rng.normal(size=(9, 2)))
    offsets = torch.tensor([0, 1, 6, 9])
    expected = torch.stack([weights[:, a:b] @ values[a:b] for a, b in ((0, 1), (1, 6), (6, 9))])
    assert torch.allclose(pool_values(weights, values, offsets), expected, atol=1e-12)
    assert torch.allclose(_pool_at_once(weights, values, offsets), expected, atol=1e-12)
