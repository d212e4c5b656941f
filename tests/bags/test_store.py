import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.packing import pack_bags
from sgpmil.bags.sources import BagSource
from sgpmil.bags.store import (
    LeftOutSlide,
    PackedSlide,
    PackedStore,
    StoreIndex,
    StoreReader,
    is_store,
)
from sgpmil.bags.target import ClassTarget
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


SLIDE = PackedSlide("a", "p", 1, 7, 512, "uni", 20.0, True, False, "10-20")
TARGET = ClassTarget(("x", "y"))
INDEX = StoreIndex("float16", 4, TARGET, (SLIDE,), (LeftOutSlide("b", "1-2", "damaged"),))


def test_round_trip():
    assert StoreIndex.from_json(INDEX.to_json()) == INDEX
    assert INDEX.num_rows == 7


def test_an_index_of_the_first_version_still_opens():
    content = json.loads(INDEX.to_json())
    del content["target"]
    assert (
        StoreIndex.from_json(json.dumps(content | {"version": 1, "class_names": ["x", "y"]}))
        == INDEX
    )


def _changed(**changes):
    return json.dumps(json.loads(INDEX.to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting"),
        ("[]", "not the index"),
        (_changed(kind="other"), "not the index"),
        (_changed(version=3), "version 3"),
        (_changed(slides=[]), "0 slides"),
        (_changed(slides=[{"slide_id": "a"}]), "missing"),
        (_changed(slides=None), "wrong"),
        (_changed(dtype="int8"), "int8"),
        (replace(INDEX, slides=(replace(SLIDE, num_instances=0),)).to_json(), "0 instances"),
    ],
)
def test_damage_is_a_value_error(text, message):
    with pytest.raises(ValueError, match=message):
        StoreIndex.from_json(text)


@pytest.fixture(params=["float16", "float32"])
def random_store(request, tmp_path, rng):
    features = [rng.normal(size=(n, 6)).astype(np.float32) for n in (3, 1, 7, 4)]
    coords = [np.arange(2 * len(x)).reshape(-1, 2) for x in features]
    bags = BagDataset.from_arrays(features, [0, 1, 0, 1], coords=coords)
    pack_bags(bags, tmp_path / "random_store", dtype=request.param)
    return PackedStore.open(tmp_path / "random_store")


def test_bags_are_read_as_they_are_packed_from_memory(random_store):
    bags = list(random_store.dataset())
    reader = StoreReader(random_store)
    for chosen in ([2, 0], [1], [3, 2, 1, 0]):
        picked = [bags[i] for i in chosen]
        found, expected = reader.pack(picked), BagBatch.pack(picked)
        assert found.features.dtype == expected.features.dtype
        assert torch.equal(found.features, expected.features)
        assert torch.equal(found.offsets, expected.offsets)
        assert torch.equal(found.coords, expected.coords)
        assert found.slide_ids == expected.slide_ids


def test_a_batch_lasts_as_long_as_its_buffer(random_store):
    bags = list(random_store.dataset())
    reader = StoreReader(random_store, num_buffers=2)
    first = reader.pack([bags[0]])
    kept = first.features.clone()
    second = reader.pack([bags[1], bags[2]])
    assert torch.equal(first.features, kept)
    reader.pack([bags[1]])
    assert not torch.equal(first.features, kept)
    assert torch.equal(second.features, BagBatch.pack([bags[1], bags[2]]).features)


def test_a_file_that_became_shorter_is_refused(random_store):
    bags = list(random_store.dataset())
    reader = StoreReader(random_store)
    path = random_store.path / "features.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(BagError, match="Pack the bags again"):
        reader.pack([bags[3]])
