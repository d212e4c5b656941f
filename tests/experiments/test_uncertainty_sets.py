import numpy as np
import pytest

from sgpmil.errors import BagError, SettingsError
from sgpmil.experiments.uncertainty_sets import (
    DIGIT_DESIGNS,
    UNCERTAINTY_SETS,
    DigitDesign,
    PlantedDesign,
    digit_set,
    planted_set,
    set_fingerprint,
    uncertainty_set,
)
from tests.experiments.tiny_data import write_colon, write_mnist

DESIGN = DigitDesign(9, (0, 1, 2), (5, 6), (8, 12), (30, 20, 25, 24))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder / "mnist", num_train=3000, num_test=2000)
    return folder


@pytest.fixture(scope="module")
def digits(data):
    return digit_set("digits", 3, DESIGN, data / "mnist")


def images(bag):
    """Number, source and digit of each image, which `write_mnist` wrote into its pixels."""
    pixels = np.rint(255 * bag.features.numpy()).astype(int)
    numbers = 250 * pixels[:, 0] + pixels[:, 1]
    return numbers.tolist(), pixels[:, 2].tolist(), pixels[:, 3]


def bags_of(found):
    return [*found.train, *found.val, *found.test.bags, *found.shifted["unseen"].bags]


def test_positive_bags_have_one_or_two_targets(digits):
    counts = []
    for bag in bags_of(digits):
        is_target = images(bag)[2] == 9
        assert bag.instance_labels.tolist() == is_target.astype(int).tolist()
        assert bag.label == int(is_target.any())
        assert 8 <= bag.num_instances <= 12
        counts.append(int(is_target.sum()))
    assert set(counts) == {0, 1, 2}
    assert [len(p) for p in (digits.train, digits.val, digits.test.bags)] == [30, 20, 25]
    assert sum(digits.train.labels) == 15


def test_unseen_digits_are_in_shifted_bags_alone(digits):
    for bag in [*digits.train, *digits.val, *digits.test.bags]:
        assert set(images(bag)[2].tolist()) <= {0, 1, 2, 9}
    part = digits.shifted["unseen"]
    for bag, classes, unseen in zip(part.bags, part.classes, part.unseen, strict=True):
        digit = images(bag)[2]
        assert classes.tolist() == digit.tolist()
        assert unseen.tolist() == [d in (5, 6) for d in digit]
        assert unseen.sum() == round(0.3 * bag.num_instances)
    assert not np.concatenate(digits.test.unseen).any()


def test_parts_share_no_image_and_bags_repeat_none(digits):
    seen = {}
    for part, bags in (
        ("train", digits.train),
        ("val", digits.val),
        ("test", [*digits.test.bags, *digits.shifted["unseen"].bags]),
    ):
        for bag in bags:
            numbers, sources, _ = images(bag)
            assert len(set(numbers)) == len(numbers)
            assert set(sources) == {255 if part == "test" else 0}
            for key in zip(numbers, sources, strict=True):
                assert seen.setdefault(key, part) == part


def test_a_seed_draws_its_own_bags(data, digits):
    again = digit_set("digits", 3, DESIGN, data / "mnist")
    other = digit_set("digits", 4, DESIGN, data / "mnist")
    for a, b in zip(bags_of(digits), bags_of(again), strict=True):
        assert (a.features == b.features).all()
    assert [images(b)[0] for b in other.train] != [images(b)[0] for b in digits.train]
    assert [images(b)[0] for b in other.test.bags] != [images(b)[0] for b in digits.test.bags]


def test_halved_images_are_means_of_four_pixels(data):
    small = DigitDesign(9, (0, 1), (5,), (4, 4), (2, 2, 2, 2), halved=True)
    whole = DigitDesign(9, (0, 1), (5,), (4, 4), (2, 2, 2, 2))
    halved, full = (digit_set("d", 0, design, data / "mnist") for design in (small, whole))
    for a, b in zip(halved.train, full.train, strict=True):
        image = np.rint(255 * b.features.numpy()).reshape(-1, 28, 28)
        for row in range(14):
            for column in range(14):
                square = image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
                found = 255 * a.features.numpy()[:, 14 * row + column]
                assert np.abs(found - square.mean((1, 2))).max() <= 0.5 + 1e-4


def test_held_back_designs_differ_from_those_that_choose():
    for name in ("digits", "needle"):
        chosen, other = DIGIT_DESIGNS[name], DIGIT_DESIGNS[f"{name}-b"]
        assert other.target != chosen.target
        assert set(other.others) != set(chosen.others)
        for design in (chosen, other):
            digits = [design.target, *design.others, *design.unseen]
            assert sorted(digits) == list(range(10))


def test_planted_instances_are_shifted_by_one_vector():
    design = PlantedDesign(0.05, dim=64, sizes=(200, 300), counts=(40, 4, 20, 20))
    found = planted_set("planted", 0, design)
    parts = [found.test, found.shifted["unseen"]]
    features = np.concatenate([bag.features.numpy() for p in parts for bag in p.bags])
    classes = np.concatenate([c for p in parts for c in p.classes])
    targets = np.concatenate([b.instance_labels.numpy() for p in parts for b in p.bags]) > 0
    for bag in [*found.train, *found.test.bags]:
        expected = round(0.05 * bag.num_instances) if bag.label else 0
        assert int(bag.instance_labels.sum()) == expected
    centres = np.stack([features[(classes == c) & ~targets].mean(0) for c in range(20)])
    shift = (features[targets] - centres[classes[targets]]).mean(0)
    assert np.linalg.norm(shift) == pytest.approx(0.625 * 8, rel=0.1)
    residual = features[~targets & (classes < 20)] - centres[classes[~targets & (classes < 20)]]
    assert residual.std() == pytest.approx(0.5, rel=0.05)


def test_new_clusters_are_in_shifted_planted_bags_alone():
    found = uncertainty_set("planted-0.5", 1, quick=True)
    assert np.concatenate(found.test.classes).max() < 20
    part = found.shifted["unseen"]
    for bag, classes, unseen in zip(part.bags, part.classes, part.unseen, strict=True):
        assert (unseen == (classes >= 20)).all()
        assert unseen.sum() == round(0.3 * bag.num_instances)
        assert not (unseen & (bag.instance_labels.numpy() > 0)).any()


def test_colon_takes_the_fold_of_the_seed(tmp_path):
    write_colon(tmp_path / "colon")
    from sgpmil.experiments.model_study import colon_bags

    _, folds = colon_bags(tmp_path / "colon")
    for seed in range(len(folds) + 1):
        found = uncertainty_set("colon", seed, data=tmp_path)
        assert found.test.bags.slide_ids == folds[seed % len(folds)].test
        assert found.train.slide_ids == folds[seed % len(folds)].train
    assert found.shifted == {}


def test_fingerprints_change_with_the_files_and_the_set(data, tmp_path):
    prints = {name: set_fingerprint(name, data) for name in UNCERTAINTY_SETS}
    assert len({prints[name] for name in (*DIGIT_DESIGNS, "planted-0.5", "planted-0.3")}) == 6
    write_mnist(tmp_path / "mnist", num_train=3000, num_test=2000)
    assert set_fingerprint("digits", tmp_path) == prints["digits"]
    write_mnist(tmp_path / "mnist", num_train=3000, num_test=1990)
    assert set_fingerprint("digits", tmp_path) != prints["digits"]


def test_bad_names_seeds_and_missing_files_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="Expected a data set among digits"):
        uncertainty_set("cifar", 0)
    with pytest.raises(SettingsError, match="0 or more, but got -1"):
        uncertainty_set("planted-0.5", -1)
    with pytest.raises(BagError, match="MNIST's images"):
        uncertainty_set("digits", 0, data=tmp_path)
