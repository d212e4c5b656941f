import numpy as np
import pytest

from sgpmil.bags import BagDataset
from sgpmil.experiments.stress_sets import (
    CAMELYON,
    PooledDesign,
    bag_size,
    digits_set,
    pooled_set,
    with_wrong_labels,
    witness_set,
)
from tests.experiments.tiny_data import write_mnist

DESIGN = PooledDesign((0.02, 0.02), (50, 200), counts=(8, 4, 6), dim=16, pool=400)


def test_a_positive_bag_has_its_share_of_targets_and_others_have_none():
    drawn = pooled_set("a", DESIGN, seed=1)
    for bags in (drawn.train, drawn.val, drawn.test.bags):
        assert bags.labels == tuple(number % 2 for number in range(len(bags)))
        for bag in bags:
            expected = max(1, round(0.02 * len(bag.features))) if bag.label else 0
            assert int(bag.instance_labels.sum()) == expected


def test_targets_are_shifted_along_one_direction_by_the_stated_length():
    design = PooledDesign((0.5, 0.5), (400, 400), counts=(20, 2, 2), dim=32, pool=8000)
    drawn = pooled_set("a", design, seed=0)
    shifts = []
    for bag in drawn.train:
        if bag.label:
            is_target = bag.instance_labels.numpy() == 1
            values = bag.features.numpy()
            shifts.append(values[is_target].mean(0) - values[~is_target].mean(0))
    mean = np.mean(shifts, axis=0)
    assert np.linalg.norm(mean) == pytest.approx(design.shift * 32**0.5, rel=0.05)


def test_parts_share_no_instance_and_seeds_differ():
    first, second = pooled_set("a", DESIGN, seed=0), pooled_set("a", DESIGN, seed=1)

    def rows(bags):
        return {row.tobytes() for bag in bags for row in bag.features.numpy()}

    assert not rows(first.train) & rows(first.test.bags)
    assert not rows(first.train) & rows(first.val)
    assert not rows(first.train) & rows(second.train)
    assert rows(first.train) == rows(pooled_set("a", DESIGN, seed=0).train)


@pytest.mark.parametrize("design", [PooledDesign((0.1, 0.1)), CAMELYON])
def test_sizes_follow_their_law(design):
    generator = np.random.default_rng(0)
    sizes = np.array([bag_size(design, generator) for _ in range(4000)])
    assert sizes.min() >= design.sizes[0]
    assert sizes.max() <= design.sizes[1]
    expected = (1000 * 20_000) ** 0.5 if design.law == "uniform" else 2200
    assert np.median(sizes) == pytest.approx(expected, rel=0.07)


def test_the_share_of_positive_bags_is_that_of_the_design():
    design = PooledDesign((0.1, 0.1), (5, 9), counts=(50, 2, 5), positive=0.4, dim=4, pool=40)
    drawn = pooled_set("a", design, seed=0)
    assert sum(drawn.train.labels) == 20
    assert sum(drawn.test.bags.labels) == 2


def test_wrong_labels_change_the_stated_share_and_nothing_else():
    bags = BagDataset.from_arrays(
        [np.full((2, 1), k) for k in range(40)], [k % 2 for k in range(40)]
    )
    wrong = with_wrong_labels(bags, 0.2, seed=3)
    assert sum(a != b for a, b in zip(wrong.labels, bags.labels, strict=True)) == 8
    assert wrong.slide_ids == bags.slide_ids
    assert [bag.label for bag in wrong] == list(wrong.labels)
    assert with_wrong_labels(bags, 0.2, seed=4).labels != wrong.labels


def test_both_classes_stay_among_wrong_labels():
    bags = BagDataset.from_arrays([np.ones((1, 1))] * 2, [0, 1])
    for seed in range(8):
        assert set(with_wrong_labels(bags, 0.5, seed=seed).labels) == {0, 1}


def test_digits_have_wrong_labels_in_training_and_validation_only(tmp_path):
    write_mnist(tmp_path / "mnist")
    clean = digits_set(tmp_path, quick=True).draw(0)
    noisy = digits_set(tmp_path, noise=20, quick=True).draw(0)
    assert noisy.train.labels != clean.train.labels
    assert noisy.test.bags.labels == clean.test.bags.labels
    assert not clean.shifted
    for bag in noisy.test.bags:
        assert bag.label == int(bag.instance_labels.any())


def test_sets_of_other_contents_have_other_digests():
    digests = {
        witness_set(1.0).fingerprint(),
        witness_set(0.3).fingerprint(),
        witness_set(1.0, quick=True).fingerprint(),
    }
    assert len(digests) == 3
    assert witness_set(1.0).fingerprint() in digests
