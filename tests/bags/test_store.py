import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.packing import pack_bags
from sgpmil.bags.sources import BagSource
from sgpmil.bags.store import PackedStore, is_store
from sgpmil.errors import BagError


@pytest.fixture
def dataset(features):
    return BagDataset.from_arrays(
        [features(3, 4), features(2, 4, 1)],
        labels=["x", "y"],
        slide_ids=["a", "b"],
        case_ids=["p", "q"],
        coords=[np.full((3, 2), 9), None],
        instance_labels=[None, [1, 0]],
    )


@pytest.fixture
def store(dataset, tmp_path):
    return pack_bags(dataset, tmp_path / "store")


def test_reads_what_was_packed(store, dataset):
    assert isinstance(store, BagSource)
    assert is_store(store.path)
    opened = PackedStore.open(store.path).dataset()
    assert opened.class_names == ("x", "y")
    assert opened.fingerprint() == dataset.fingerprint()
    for packed, bag in zip(opened, dataset, strict=True):
        assert torch.equal(packed.features, bag.features)
        assert (packed.label, packed.case_id) == (bag.label, bag.case_id)
    assert opened[0].coords.tolist() == [[9, 9]] * 3
    assert opened[1].coords is None
    assert opened[0].instance_labels is None
    assert opened[1].instance_labels.tolist() == [1, 0]


def test_bag_is_a_copy(store):
    before = store.read("a").features
    store.read("a").features.zero_()
    assert torch.equal(store.read("a").features, before)


def test_pickles_as_its_path(store):
    data = pickle.dumps(store)
    assert len(data) < 500
    assert torch.equal(pickle.loads(data).read("b").features, store.read("b").features)  # noqa: S301


def test_unknown_slide(store):
    with pytest.raises(BagError, match="'x'"):
        store.read("x")


def test_matches_while_nothing_changes(store, dataset, features):
    assert store.matches(dataset)
    assert not store.matches(dataset.subset(["a"]))
    other = BagDataset.from_arrays([features(3, 4, 5), features(2, 4, 1)], slide_ids=["a", "b"])
    assert not store.matches(other)


@pytest.mark.parametrize("name", ["features.npy", "coords.npy", "instance_labels.npy"])
@pytest.mark.parametrize("lost", [1, 40, 10**6])
def test_truncated_array(store, name, lost):
    path = store.path / name
    content = path.read_bytes()
    path.write_bytes(content[: max(0, len(content) - lost)])
    with pytest.raises(BagError, match=f"{name}.*Pack the bags again"):
        PackedStore.open(store.path)


def test_array_of_another_shape(store):
    np.save(store.path / "features.npy", np.zeros((4, 4), "float32"))
    with pytest.raises(BagError, match=r"\(5, 4\).*\(4, 4\)"):
        PackedStore.open(store.path)


def test_damaged_index(store):
    (store.path / "index.json").write_text(replace(store.index, slides=()).to_json())
    with pytest.raises(BagError, match="0 slides"):
        PackedStore.open(store.path)


def test_no_store(tmp_path):
    assert not is_store(tmp_path)
    with pytest.raises(BagError, match="packed store"):
        PackedStore.open(tmp_path)
