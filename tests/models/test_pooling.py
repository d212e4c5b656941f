import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.models.pooling import (
    POOLINGS,
    bag_softmax,
    pool,
    pooling_weights,
)

sizes_of_bags = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def segments_of(sizes):
    return Segments.of(torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()]))


def packed(sizes, *, num_samples=3, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(num_samples, sum(sizes), generator=generator).double()
    return values, segments_of(sizes)


@settings(max_examples=40, deadline=None)
@given(sizes_of_bags, st.sampled_from([1.0, 1e2, 1e4]), st.integers(0, 99))
def test_softmax_is_torchs_bag_by_bag(sizes, scale, seed):
    values, segments = packed(sizes, scale=scale, seed=seed)
    expected = torch.cat([v.softmax(dim=1) for v in values.split(sizes, dim=1)], dim=1)
    assert torch.allclose(bag_softmax(values, segments), expected, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_of_extreme_values(dtype):
    values = torch.tensor([[1e4, 1e4, -1e4, -1e4, -1e4, 0.0]], dtype=dtype)
    expected = torch.tensor([[0.5, 0.5, 0.0, 0.5, 0.5, 1.0]], dtype=dtype)
    result = bag_softmax(values, segments_of([3, 2, 1]))
    assert torch.equal(result, expected)
    assert result.dtype == dtype


def test_softmax_gradient():
    values, segments = packed([2, 3], num_samples=2)
    assert torch.autograd.gradcheck(
        lambda v: bag_softmax(v, segments), values.requires_grad_(), fast_mode=True
    )


@settings(max_examples=40, deadline=None)
@given(sizes_of_bags, st.integers(0, 99))
def test_weights_and_their_sums(sizes, seed):
    values, segments = packed(sizes, seed=seed)
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
        weights = pooling_weights(attention, segments, pooling)
        assert torch.allclose(weights, expected[pooling], atol=1e-14)
        found = torch.stack([w.sum(1) for w in weights.split(sizes, dim=1)], dim=1)
        assert torch.allclose(found, sums[pooling])


def test_normalised_weights_of_vanished_attention_are_finite():
    attention = torch.zeros(1, 3, requires_grad=True)
    weights = pooling_weights(attention, segments_of([3]), "normalised")
    assert torch.equal(weights, torch.zeros(1, 3))


def test_unknown_pooling_lists_the_known():
    with pytest.raises(SettingsError, match="one of sum, mean, normalised, but got 'max'"):
        pooling_weights(torch.ones(1, 1), segments_of([1]), "max")


@settings(max_examples=40, deadline=None)
@given(sizes_of_bags, st.integers(0, 99))
def test_pool_is_the_weighted_sum(sizes, seed):
    weights, segments = packed(sizes, seed=seed)
    embeddings = torch.randn(
        sum(sizes), 4, generator=torch.Generator().manual_seed(seed + 1)
    ).double()
    member = torch.nn.functional.one_hot(segments.index, len(sizes)).double()
    expected = torch.einsum("st,th,tb->bsh", weights, embeddings, member)
    assert torch.allclose(pool(weights, embeddings, segments), expected, atol=1e-12)


def test_pool_sums_in_single_precision_at_least():
    # 2048 + 1 is 2048 in half precision.
    ones = torch.ones(1, 2049, dtype=torch.float16)
    result = pool(ones, ones.T, segments_of([2049]))
    assert torch.equal(result, torch.tensor([[[2049.0]]]))


def test_a_bag_without_rows_sums_to_zero():
    values, segments = packed([2, 1, 0], num_samples=2)
    softmax = bag_softmax(values, segments)
    result = pool(softmax, torch.ones(3, 4).double(), segments)
    expected = torch.tensor([1.0, 1.0, 0.0]).double()[:, None, None].expand(3, 2, 4)
    assert torch.allclose(result, expected, atol=1e-15)
