import numpy as np
import pytest
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.models.inducing_patches import InducingPatches, draw_pool


def bags(sizes, dim=3, *, with_coords=True):
    rng = np.random.default_rng(0)
    return [
        Bag(
            torch.tensor(rng.normal(size=(n, dim)), dtype=torch.float32),
            slide_id=f"slide é {i}",
            coords=torch.arange(2 * n).reshape(n, 2) + 100 * i if with_coords else None,
        )
        for i, n in enumerate(sizes)
    ]


@pytest.mark.parametrize("with_coords", [True, False])
def test_patches_are_rows_of_the_bags_that_their_origins_name(with_coords):
    given = bags((40, 3, 900, 1), with_coords=with_coords)
    by_name = {bag.slide_id: bag for bag in given}
    batches = [BagBatch.pack(given[:2]), BagBatch.pack(given[2:])]
    pool = draw_pool(batches, num_bags=4, seed=1, score=lambda x: x[:, 0])
    patches = InducingPatches(5, 3)
    patches.take(pool, torch.tensor([0, 7, 7, len(pool.origins) - 1, 30]))
    copy = InducingPatches(5, 3)
    copy.load_state_dict(patches.state_dict())
    assert {o.slide_id for o in pool.origins} == set(by_name)
    for features, origin in zip(copy.features, copy.origins, strict=True):
        bag = by_name[origin.slide_id]
        assert torch.equal(features, bag.features[origin.row])
        expected = tuple(bag.coords[origin.row].tolist()) if with_coords else None
        assert origin.coords == expected


def test_the_pool_has_the_highest_scores_of_every_bag_and_some_others(monkeypatch):
    monkeypatch.setattr("sgpmil.models.inducing_patches.POOL_SIZE", 80)
    given = bags((200, 400))
    pool = draw_pool([BagBatch.pack(given)], num_bags=2, seed=1, score=lambda x: x[:, 1])
    for bag in given:
        rows = {o.row for o in pool.origins if o.slide_id == bag.slide_id}
        highest = set(np.argsort(bag.features[:, 1].numpy())[-20:].tolist())  # half of 40 a bag
        assert highest <= rows
        assert 10 <= len(rows - highest) <= 20
    unscored = draw_pool([BagBatch.pack(given)], num_bags=2, seed=1, score=None)
    assert len(unscored.origins) == 80


def test_a_slide_name_that_is_too_long_is_cut():
    name = "é" * 300
    pool = draw_pool(
        [BagBatch.pack([Bag(torch.ones(2, 3), slide_id=name)])], num_bags=1, seed=0, score=None
    )
    patches = InducingPatches(1, 3)
    patches.take(pool, torch.tensor([0]))
    assert patches.origins[0].slide_id == "é" * 128


def test_patches_of_an_untrained_model_have_no_origin():
    assert {(o.slide_id, o.row, o.coords) for o in InducingPatches(4, 2).origins} == {
        ("", -1, None)
    }
