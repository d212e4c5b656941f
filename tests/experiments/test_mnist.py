import gzip
import math
from collections import Counter

import numpy as np
import pytest

from sgpmil.errors import BagError
from sgpmil.experiments.mnist import (
    MNIST_FILES,
    PIXEL_MEAN,
    PIXEL_STD,
    RepeatedImageWarning,
    mnist_bags,
    read_idx_images,
    read_idx_labels,
)
from tests.experiments.tiny_data import write_idx, write_mnist


def test_what_was_written_is_read(tmp_path, rng):
    images = rng.integers(0, 256, (5, 28, 28))
    write_idx(tmp_path / "i.gz", images)
    write_idx(tmp_path / "l.gz", [3, 1, 4, 1, 5])
    np.testing.assert_array_equal(read_idx_images(tmp_path / "i.gz"), images)
    assert read_idx_labels(tmp_path / "l.gz").tolist() == [3, 1, 4, 1, 5]


def _missing(path):
    pass


def _labels_for_images(path):
    write_idx(path, [1, 2, 3])


def _truncated_gzip(path):
    write_idx(path, np.random.default_rng(0).integers(0, 256, (50, 28, 28)))
    path.write_bytes(path.read_bytes()[:-2000])


def _damaged_gzip(path):
    write_idx(path, np.random.default_rng(0).integers(0, 256, (50, 28, 28)))
    content = bytearray(path.read_bytes())
    content[2000:2100] = bytes(100)
    path.write_bytes(bytes(content))


def _truncated_content(path):
    write_idx(path, np.zeros((5, 28, 28)))
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-7]))


def _not_gzip(path):
    path.write_bytes(b"not gzip at all")


def _only_a_few_bytes(path):
    path.write_bytes(gzip.compress(b"\0\0"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_missing, "no such file"),
        (_labels_for_images, "2051.*2049"),
        (_truncated_gzip, "truncated"),
        (_damaged_gzip, "damaged"),
        (_truncated_content, "Expected 3920 bytes.*got 3913"),
        (_not_gzip, "damaged"),
        (_only_a_few_bytes, "magic number"),
    ],
)
def test_errors_are_one_sentence_with_the_file(tmp_path, spoil, said):
    path = tmp_path / "images.gz"
    spoil(path)
    with pytest.raises(BagError, match=said) as error:
        read_idx_images(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def _shown(bag):
    """Read back what each image of `write_mnist` shows: its number, whether of test, its digit."""
    pixels = np.rint((bag.features.numpy() * PIXEL_STD + PIXEL_MEAN) * 255).astype(int)
    return 250 * pixels[:, 0] + pixels[:, 1], pixels[:, 2] == 255, pixels[:, 3]


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mnist")
    write_mnist(folder, num_train=3000, num_test=1500)
    bags, (fold,) = mnist_bags(folder, digit=9, num_train=200, num_val=40, num_test=100, seed=3)
    return bags, fold


def test_labels_follow_from_the_digits(dealt):
    bags, fold = dealt
    assert (len(fold.train), len(fold.val), len(fold.test)) == (200, 40, 100)
    for bag in bags:
        _, of_test, digits = _shown(bag)
        assert len(digits) == 9
        np.testing.assert_array_equal(bag.instance_labels.numpy(), digits == 9)
        assert bag.label == int((digits == 9).any())
        assert (of_test == bag.slide_id.startswith("test")).all()
    for part in (fold.train, fold.val, fold.test):
        assert sum(label or 0 for label in bags.subset(part).labels) == len(part) // 2


def test_no_image_is_in_two_bags_or_parts(dealt):
    bags, _ = dealt
    rows = Counter(
        (number, source)
        for bag in bags
        for number, source in zip(*(column.tolist() for column in _shown(bag)[:2]), strict=True)
    )
    assert len(rows) == 340 * 9
    assert max(rows.values()) == 1


def test_instances_lie_on_a_grid(dealt):
    bag = dealt[0][0]
    assert bag.patch_size == 28
    assert sorted(map(tuple, bag.coords.tolist())) == [
        (28 * x, 28 * y) for x in range(3) for y in range(3)
    ]


def test_number_of_targets_is_the_binomial_given_one(tmp_path):
    write_mnist(tmp_path, num_train=4000, num_test=100)
    with pytest.warns(RepeatedImageWarning, match="'train'"):
        bags, (fold,) = mnist_bags(tmp_path, num_train=4000, num_val=0, num_test=2)
    counts = [int(bag.instance_labels.sum()) for bag in bags.subset(fold.train) if bag.label]
    none = 0.9**9
    for k in (1, 2, 3):
        expected = math.comb(9, k) * 0.1**k * 0.9 ** (9 - k) / (1 - none)
        error = math.sqrt(expected * (1 - expected) / len(counts))
        assert abs(np.mean(np.array(counts) == k) - expected) < 4 * error


def test_too_few_images_repeat_across_bags_never_within_one_or_across_parts(tmp_path):
    write_mnist(tmp_path, num_train=200, num_test=100)
    with pytest.warns(RepeatedImageWarning):
        bags, (fold,) = mnist_bags(tmp_path, num_train=60, num_val=20, num_test=4)
    images = {}
    for part in ("train", "val"):
        images[part] = set()
        for bag in bags.subset(fold.part(part)):
            numbers = _shown(bag)[0].tolist()
            assert len(set(numbers)) == 9
            images[part] |= set(numbers)
    assert not images["train"] & images["val"]


def test_same_seed_same_bags(tmp_path):
    write_mnist(tmp_path)

    def of(seed):
        return mnist_bags(tmp_path, num_train=10, num_val=2, num_test=4, seed=seed)[0].fingerprint()

    assert of(0) == of(0) != of(1)


def test_far_too_few_images_are_refused(tmp_path):
    write_mnist(tmp_path, num_train=8, num_test=8)
    with pytest.raises(BagError, match="Expected at least 9 images other than the target digit"):
        mnist_bags(tmp_path, num_train=2, num_val=0, num_test=2)


def test_images_without_labels_are_refused(tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / MNIST_FILES["train"][1], [1, 2, 3])
    with pytest.raises(BagError, match="label for each of the 400 images"):
        mnist_bags(tmp_path)


def test_images_of_another_size_are_refused(tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / MNIST_FILES["train"][0], np.zeros((400, 8, 8)))
    with pytest.raises(BagError, match=r"28×28 pixels.*8×8"):
        mnist_bags(tmp_path)
