import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.bags.segments import Segments
from sgpmil.gp.noise import FreshNoise, PairedNoise, RepeatableNoise, ZeroNoise

SOURCES = [FreshNoise(), RepeatableNoise(1), ZeroNoise(), PairedNoise(FreshNoise())]
LIKE = torch.zeros(1)


def segments_of(sizes):
    return Segments.of(torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("source", SOURCES, ids=lambda s: type(s).__name__)
def test_shape_and_dtype(source, dtype):
    like = torch.zeros(1, dtype=dtype)
    draws = [
        (source.per_instance(3, Segments.of(torch.tensor([0, 2, 7])), like), (3, 7)),
        (source.per_bag(3, 2, like), (3, 2)),
        (source.per_function(3, 5, like), (3, 5)),
    ]
    for draw, shape in draws:
        assert draw.shape == shape
        assert draw.dtype == dtype


@pytest.mark.parametrize("source", [FreshNoise(), RepeatableNoise(0)], ids=["fresh", "repeatable"])
def test_draws_are_standard_normal(source):
    torch.manual_seed(0)
    draws = {
        "instance": source.per_instance(200, Segments.of(torch.tensor([0, 200])), LIKE),
        "function": source.per_function(200, 200, LIKE),
        "bag": source.per_bag(40_000, 1, LIKE),
    }
    for values in draws.values():
        n = values.numel()
        assert abs(values.mean()) < 5 / n**0.5
        assert abs(values.var() - 1) < 5 * (2 / n) ** 0.5
        assert abs((values**4).mean() - 3) < 5 * (96 / n) ** 0.5
    flat = [values.flatten() for values in draws.values()]
    correlation = torch.corrcoef(torch.stack(flat))
    assert (correlation - torch.eye(3)).abs().max() < 5 / 40_000**0.5


def test_fresh_noise_differs_at_each_call_and_follows_the_global_seed():
    torch.manual_seed(5)
    first, second = (FreshNoise().per_function(2, 9, LIKE) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(first, FreshNoise().per_function(2, 9, LIKE))
    per_bag = FreshNoise().per_bag(1, 4, LIKE)
    assert len(per_bag.unique()) == 4


def test_repeatable_noise_is_the_same_at_each_call_and_leaves_the_global_seed():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    source = RepeatableNoise(3)
    segments = Segments.of(torch.tensor([0, 4, 9]))
    assert torch.equal(
        source.per_instance(6, segments, LIKE), RepeatableNoise(3).per_instance(6, segments, LIKE)
    )
    assert torch.equal(source.per_bag(6, 2, LIKE), source.per_bag(6, 2, LIKE))
    assert torch.equal(source.per_function(6, 2, LIKE), source.per_function(6, 2, LIKE))
    assert torch.equal(torch.get_rng_state(), before)
    other = RepeatableNoise(4)
    assert not torch.equal(
        source.per_instance(6, segments, LIKE), other.per_instance(6, segments, LIKE)
    )


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
    st.sampled_from([1, 2, 3, 7, 30]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_bag_gets_the_same_draws_in_any_batch(sizes, num_samples, dtype):
    like = torch.zeros(1, dtype=dtype)
    source = RepeatableNoise(2)
    packed = source.per_instance(num_samples, segments_of(sizes), like)
    for size, part in zip(sizes, packed.split(sizes, dim=1), strict=True):
        assert torch.equal(part, source.per_instance(num_samples, segments_of([size]), like))
    per_bag = source.per_bag(num_samples, len(sizes), like)
    assert torch.equal(per_bag, source.per_bag(num_samples, 1, like).expand_as(per_bag))


def test_instances_of_a_bag_get_different_draws():
    draws = RepeatableNoise(0).per_instance(1, Segments.of(torch.tensor([0, 500])), LIKE)
    assert len(draws.unique()) == 500


def test_zero_noise_is_zero():
    source = ZeroNoise()
    assert not source.per_instance(2, Segments.of(torch.tensor([0, 3])), LIKE).any()
    assert not source.per_bag(2, 3, LIKE).any()
    assert not source.per_function(2, 3, LIKE).any()


def test_draws_remembered_from_inference_serve_where_gradients_are_asked_for():
    source = RepeatableNoise(91)
    with torch.inference_mode():
        source.per_function(2, 3, LIKE)
    weights = torch.ones(2, 3, requires_grad=True)
    (weights * source.per_function(2, 3, LIKE)).sum().backward()
    assert torch.equal(weights.grad, source.per_function(2, 3, LIKE))


def test_pairs_have_opposite_signs():
    segments = Segments.of(torch.tensor([0, 3, 7]))
    noise = PairedNoise(RepeatableNoise(4))
    for drawn in (
        noise.per_instance(6, segments, torch.zeros(())),
        noise.per_bag(6, 2, torch.zeros(())),
        noise.per_function(6, 5, torch.zeros(())),
    ):
        assert torch.equal(drawn[:3], -drawn[3:])
    odd = noise.per_function(5, 4, torch.zeros(()))
    assert torch.equal(odd[:2], -odd[3:])


def test_streams_differ_and_repeat():
    like = torch.zeros(())
    first, again, other = (RepeatableNoise(1).stream(k).per_function(4, 3, like) for k in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
