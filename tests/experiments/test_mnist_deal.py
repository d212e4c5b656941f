import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sgpmil.errors import BagError, SettingsError
from sgpmil.experiments import mnist_deal
from sgpmil.experiments.mnist import MNIST_FILES, PIXEL_MEAN, PIXEL_STD, read_mnist
from sgpmil.experiments.mnist_deal import deal_digits, digits_fingerprint, fetch_mnist
from tests.experiments.tiny_data import write_mnist


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("mnist")
    write_mnist(place)  # 400 images to train on, 200 to test on; image k shows digit k % 10
    return place


def shown(bag):
    """Return number, source and digit of each image, which its first pixels encode."""
    pixels = torch.round(255 * (PIXEL_STD * bag.features[:, :4] + PIXEL_MEAN)).long()
    return 250 * pixels[:, 0] + pixels[:, 1], pixels[:, 2] // 255, pixels[:, 3]


def images_of(bags):
    return [int(k) for bag in bags for k in shown(bag)[0]]


def test_every_image_is_in_one_bag_at_most_and_labels_follow_from_the_digits(folder):
    dealt = deal_digits(folder, digit=3)
    for bags, count, source in ((dealt.train, 400, 0), (dealt.held_out, 200, 1)):
        assert len(bags) == count // 9
        assert set(bags.num_instances) == {9}
        numbers = images_of(bags)
        assert len(set(numbers)) == len(numbers) == 9 * len(bags)
        for bag in bags:
            numbers, sources, digits = shown(bag)
            assert (sources == source).all()
            assert digits.tolist() == (numbers % 10).tolist()
            assert bag.instance_labels.tolist() == (digits == 3).long().tolist()
            assert bag.label == int((digits == 3).any())
    assert dealt.train.target.names == ("no 3", "has a 3")


def test_a_seed_fixes_the_deal_and_another_deals_anew(folder):
    first, again, other = (images_of(deal_digits(folder, seed=s).train) for s in (0, 0, 1))
    assert first == again != other
    assert first != sorted(first)


def test_validation_bags_are_the_last_training_images_of_every_seed(folder):
    kept = []
    for seed in (0, 1):
        dealt = deal_digits(folder, seed=seed, held_out="validation")
        assert all(
            (shown(bag)[1] == 0).all() for bags in (dealt.train, dealt.held_out) for bag in bags
        )
        held_out = set(images_of(dealt.held_out))
        assert min(held_out) >= 400 - 400 // 6
        assert not held_out & set(images_of(dealt.train))
        kept.append(held_out)
    assert len(kept[0] & kept[1]) > 50


def test_fewer_bags_to_try(folder):
    dealt = deal_digits(folder, max_bags=24)
    assert (len(dealt.train), len(dealt.held_out)) == (24, 4)


def test_what_cannot_be_dealt_is_refused(folder, tmp_path):
    with pytest.raises(SettingsError, match=r"digit from 0 to 9.*10"):
        deal_digits(folder, digit=10)
    with pytest.raises(SettingsError, match="at least 6 bags"):
        deal_digits(folder, max_bags=5)
    write_mnist(tmp_path, num_train=60, num_test=9)
    with pytest.raises(BagError, match=r"bags with and without.*'has a 9'.*1 bags of 'test'"):
        deal_digits(tmp_path)


def test_the_fingerprint_is_of_the_content(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = digits_fingerprint(folder, "test")
    assert digits_fingerprint(tmp_path, "test") == whole
    assert whole.startswith(digits_fingerprint(tmp_path, "validation"))
    write_mnist(tmp_path, num_test=210)
    assert digits_fingerprint(tmp_path, "test") != whole
    (tmp_path / MNIST_FILES["test"][0]).unlink()
    assert digits_fingerprint(tmp_path, "validation")
    with pytest.raises(BagError, match=r"no t10k-images-idx3-ubyte.gz.*`fetch=True`"):
        digits_fingerprint(tmp_path, "test")


@pytest.fixture
def openml(monkeypatch):
    """Stand in for OpenML with 14 images, of which the first 12 are to train on."""
    images = np.random.default_rng(0).integers(0, 256, (14, 784))
    digits = np.arange(14) % 10
    calls = []

    def fetch_openml(name, *, version, **rest):
        calls.append((name, version))
        return SimpleNamespace(data=images, target=digits.astype(str))

    monkeypatch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(fetch_openml=fetch_openml))
    monkeypatch.setattr(mnist_deal, "_IMAGES", 14)
    monkeypatch.setattr(mnist_deal, "_TRAIN_IMAGES", 12)
    return SimpleNamespace(images=images, digits=digits, calls=calls)


def test_what_is_fetched_can_be_read_and_is_fetched_once(openml, tmp_path):
    fetch_mnist(tmp_path / "mnist")
    fetch_mnist(tmp_path / "mnist")
    assert openml.calls == [("mnist_784", 1)]
    for source, rows in (("train", slice(12)), ("test", slice(12, None))):
        images, digits = read_mnist(tmp_path / "mnist", source)
        np.testing.assert_array_equal(images.reshape(-1, 784), openml.images[rows])
        np.testing.assert_array_equal(digits, openml.digits[rows])


def test_what_cannot_be_fetched_is_said_in_a_sentence(openml, tmp_path, monkeypatch):
    def unreachable(*args, **rest):
        raise OSError("no route\nto host")

    monkeypatch.setattr(mnist_deal, "_IMAGES", 70_000)
    with pytest.raises(BagError, match=r"70000 images.*\(14, 784\)"):
        fetch_mnist(tmp_path)
    sys.modules["sklearn.datasets"].fetch_openml = unreachable
    with pytest.raises(BagError, match=r"'no route to host'.*Check the network"):
        fetch_mnist(tmp_path)
    assert not list(tmp_path.iterdir())
