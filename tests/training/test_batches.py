import threading
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.bags import BagDataset, pack_bags
from sgpmil.errors import BagError
from sgpmil.gpu.resident import on_device
from sgpmil.training.batches import (
    PackedBatches,
    divide_step,
    draw_epoch,
    epoch_batches,
    read_ahead,
    sequential_batches,
    store_reader,
)

from .conftest import toy_bags

UNEVEN = [0] * 90 + [1] * 8 + [2] * 2


def test_balanced_draws_are_even_over_classes_and_within_them():
    drawn = [i for e in range(300) for i in draw_epoch(UNEVEN, seed=1, epoch=e, balanced=True)]
    assert len(drawn) == 300 * 100
    classes = Counter(UNEVEN[i] for i in drawn)
    for c in range(3):
        # Standard error 0.0027.
        assert classes[c] / len(drawn) == pytest.approx(1 / 3, abs=0.014)
    rare = Counter(i for i in drawn if UNEVEN[i] == 1)
    assert all(rare[i] / classes[1] == pytest.approx(1 / 8, abs=0.017) for i in range(90, 98))


def test_balanced_draws_are_with_replacement_and_as_many_as_there_are_bags():
    drawn = draw_epoch(UNEVEN, seed=0, epoch=0, balanced=True)
    assert len(drawn) == 100
    assert len(set(drawn)) < 100


def test_a_class_without_bags_does_no_harm():
    drawn = draw_epoch([0, 2, 2, 2], seed=0, epoch=0, balanced=True)
    assert set(drawn) <= {0, 1, 2, 3}


@pytest.mark.parametrize("balanced", [True, False])
def test_draws_depend_on_seed_and_epoch_alone(balanced):
    def draw(seed, epoch):
        return draw_epoch(UNEVEN, seed=seed, epoch=epoch, balanced=balanced)

    torch.manual_seed(1)
    first = draw(3, 4)
    torch.manual_seed(2)
    assert draw(3, 4) == first
    assert draw(3, 5) != first
    assert draw(4, 4) != first
    # Seed and epoch are not merely added up.
    assert draw(4, 3) != first


def test_without_replacement_every_bag_comes_once_in_another_order():
    drawn = draw_epoch(UNEVEN, seed=0, epoch=0, balanced=False)
    assert sorted(drawn) == list(range(100))
    assert drawn != list(range(100))


@pytest.mark.parametrize("balanced", [True, False])
def test_an_epoch_packs_the_drawn_bags_in_order(balanced):
    bags = toy_bags(7)
    order = draw_epoch([i % 2 for i in range(7)], seed=2, epoch=5, balanced=balanced)
    batches = list(epoch_batches(bags, seed=2, epoch=5, balanced=balanced, bags_per_step=3))
    assert [batch.num_bags for batch in batches] == [3, 3, 1]
    assert [s for b in batches for s in b.slide_ids] == [f"s{i}" for i in order]
    assert [y for b in batches for y in b.labels.tolist()] == [i % 2 for i in order]
    expected = torch.cat([bags[i].features for i in order])
    assert torch.equal(torch.cat([batch.features for batch in batches]), expected)


def test_sequential_batches_give_every_bag_once_in_order():
    bags = toy_bags(5)
    batches = list(sequential_batches(bags, 2))
    assert [batch.slide_ids for batch in batches] == [("s0", "s1"), ("s2", "s3"), ("s4",)]


@pytest.mark.parametrize(
    ("most", "groups"),
    [
        (100, [4, 1]),
        (9, [3, 2]),  # bags of 2, 3, 4, 5, 2 instances
        (8, [2, 1, 2]),
        (5, [2, 1, 1, 1]),
        (1, [1, 1, 1, 1, 1]),  # a larger bag is not left out
    ],
)
def test_a_batch_has_at_most_so_many_bags_and_instances(most, groups):
    batches = list(sequential_batches(toy_bags(5), 4, most))
    assert [batch.num_bags for batch in batches] == groups
    assert [s for b in batches for s in b.slide_ids] == ["s0", "s1", "s2", "s3", "s4"]


def test_there_are_no_batches_beyond_the_last():
    batches = PackedBatches(toy_bags(3), [[0], [1, 2]])
    assert len(batches) == 2
    assert batches[1].slide_ids == ("s1", "s2")
    for index in (2, -1):
        with pytest.raises(IndexError):
            batches[index]


@pytest.mark.parametrize("bags_per_step", [1, 3])
def test_batches_read_ahead_of_a_store_are_those_read_one_by_one(tmp_path, rng, bags_per_step):
    arrays = [rng.normal(size=(n, 3)).astype(np.float32) for n in rng.integers(1, 9, 20)]
    memory = BagDataset.from_arrays(arrays, [i % 2 for i in range(20)])
    store = pack_bags(memory, tmp_path / "store").dataset()
    batches = epoch_batches(
        store,
        seed=0,
        epoch=0,
        balanced=False,
        bags_per_step=bags_per_step,
        reader=store_reader(store),
    )
    found = [(b.slide_ids, b.features.clone()) for b in read_ahead(batches, torch.device("cpu"))]
    assert sum(len(ids) for ids, _ in found) == 20
    for ids, features in found:
        expected = torch.cat([store.source.read(s).features for s in ids])
        assert torch.equal(features, expected)


def test_a_batch_that_cannot_be_read_ahead_is_the_callers_error(rng):
    class Broken(PackedBatches):
        def __getitem__(self, index):
            if index == 1:
                raise BagError("Expected a whole file.")
            return super().__getitem__(index)

    bags = BagDataset.from_arrays([rng.normal(size=(2, 3)) for _ in range(3)], [0, 1, 0])
    seen = []
    with pytest.raises(BagError, match="a whole file"):
        seen.extend(read_ahead(Broken(bags, [[0], [1], [2]]), torch.device("cpu")))


def test_bags_on_a_device_are_packed_by_the_thread_that_trains_on_them(monkeypatch):
    # On a GPU that is computed, on the stream of whichever thread does it.
    bags = on_device(toy_bags(), torch.device("cpu"))
    batches = PackedBatches(bags, [[0, 1], [2, 3], [4]])
    threads = []
    pack = PackedBatches.__getitem__

    def packed(self, index):
        threads.append(threading.current_thread())
        return pack(self, index)

    monkeypatch.setattr(PackedBatches, "__getitem__", packed)
    found = [batch.slide_ids for batch in read_ahead(batches, torch.device("cpu"))]
    assert found == [("s0", "s1"), ("s2", "s3"), ("s4",)]
    assert set(threads) == {threading.main_thread()}


def test_processes_divide_each_step_and_their_shares_are_of_its_bags():
    batches = PackedBatches(toy_bags(8), [[0, 1, 2, 3, 4], [5, 6], [7]])  # of 2, 3, 4, 5, 2, ...
    first, second = (batches.divided(rank, 2) for rank in range(2))
    assert first.groups == [[0, 3, 4], [6], [7]]  # the largest, then what balances it
    assert second.groups == [[1, 2], [5], [7]]  # without a bag of its own it computes one
    assert first.shares == [3 / 5, 1 / 2, 1.0]
    assert second.shares == [2 / 5, 1 / 2, 0.0]
    assert batches.shares == [1.0, 1.0, 1.0]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=24), st.integers(1, 6))
def test_a_step_is_divided_whole_and_evenly(sizes, num_ranks):
    parts = divide_step(sizes, num_ranks)
    assert sorted(i for part in parts for i in part) == list(range(len(sizes)))
    loads = [sum(sizes[i] for i in part) for part in parts]
    # The fullest process was the emptiest before its last bag.
    assert max(loads) - min(loads) <= max(sizes)
    assert sum(bool(part) for part in parts) == min(len(sizes), num_ranks)
