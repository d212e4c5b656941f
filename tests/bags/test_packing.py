import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.packing import ArrayWriter, pack_bags
from sgpmil.bags.reading import read_bags
from sgpmil.bags.store import PackedStore, is_store
from sgpmil.errors import BagError

DIM = 3
matrices = st.integers(1, 9).flatmap(
    lambda n: hnp.arrays("float32", (n, DIM), elements=st.floats(-1e6, 1e6, width=32))
)


@settings(deadline=None, max_examples=40)
@given(st.lists(matrices, min_size=1, max_size=6))
def test_pack_and_unpack(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("pack") / "store"
    dataset = BagDataset.from_arrays(arrays, labels=[i % 2 for i in range(len(arrays))])
    packed = pack_bags(dataset, path).dataset()
    assert packed.labels == dataset.labels
    assert packed.num_instances == tuple(len(array) for array in arrays)
    for bag, array in zip(packed, arrays, strict=True):
        assert np.array_equal(bag.features.numpy(), array)


@settings(deadline=None, max_examples=20)
@given(st.lists(matrices.map(lambda a: a / 100), min_size=1, max_size=4))
def test_float16_is_within_its_precision(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("pack") / "store"
    store = pack_bags(BagDataset.from_arrays(arrays), path, dtype="float16")
    for bag, array in zip(store.dataset(), arrays, strict=True):
        np.testing.assert_allclose(bag.features.numpy(), array, rtol=1e-3, atol=1e-7)


@pytest.fixture
def dataset(features):
    return BagDataset.from_arrays([features(2, DIM), features(3, DIM)], slide_ids=["a", "b"])


def test_type_is_that_of_the_source(tmp_path, features, write_trident):
    write_trident(tmp_path / "in" / "a.h5", features(2, dtype="float16"))
    store = pack_bags(read_bags(tmp_path / "in"), tmp_path / "half")
    assert np.load(store.path / "features.npy").dtype == np.float16
    assert store.header("a").encoder == "uni_v1"
    assert store.read("a").patch_size == 512
    write_trident(tmp_path / "in" / "b.h5", features(2, dtype="float32"))
    store = pack_bags(read_bags(tmp_path / "in"), tmp_path / "single")
    assert np.load(store.path / "features.npy").dtype == np.float32


def test_float16_overflow_is_refused(tmp_path):
    dataset = BagDataset.from_arrays([np.full((1, 2), 1e5)])
    with pytest.raises(BagError, match="65504"):
        pack_bags(dataset, tmp_path / "store", dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_callback(tmp_path, dataset):
    seen = []
    pack_bags(dataset, tmp_path / "store", on_bag=seen.append)
    assert seen == ["a", "b"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]


def test_existing_store_is_kept_unless_told(tmp_path, dataset):
    pack_bags(dataset, tmp_path / "store")
    with pytest.raises(BagError, match="packed store already"):
        pack_bags(dataset, tmp_path / "store")
    pack_bags(dataset.subset(["b"]), tmp_path / "store", overwrite=True)
    assert PackedStore.open(tmp_path / "store").slide_ids == ("b",)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]


def test_other_folders_are_never_replaced(tmp_path, dataset):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(BagError, match="other files"):
            pack_bags(dataset, path, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_bad_bag_leaves_nothing_or_is_left_out(tmp_path, features, write_trident):
    write_trident(tmp_path / "in" / "a.h5", features(2))
    write_trident(tmp_path / "in" / "b.h5", np.full((2, 4), np.nan, "float32"))
    dataset = read_bags(tmp_path / "in")
    with pytest.raises(BagError, match=r"b\.h5"):
        pack_bags(dataset, tmp_path / "store")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    store = pack_bags(dataset, tmp_path / "store", on_bad="skip")
    assert store.slide_ids == ("a",)
    assert [slide.slide_id for slide in store.index.left_out] == ["b"]
    with pytest.raises(BagError, match="none of 1"):
        pack_bags(dataset.subset(["b"]), tmp_path / "other", on_bad="skip")


def test_full_disk_leaves_nothing(tmp_path, dataset, monkeypatch):
    def full(self, rows):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ArrayWriter, "append", full)
    with pytest.raises(BagError, match="No space left on device"):
        pack_bags(dataset, tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_failed_overwrite_keeps_the_old_store(tmp_path, dataset, monkeypatch):
    pack_bags(dataset, tmp_path / "store")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BagError, match="No space"):
        pack_bags(dataset.subset(["b"]), tmp_path / "store", overwrite=True)
    assert PackedStore.open(tmp_path / "store").slide_ids == ("a", "b")


def test_unwritable_place(tmp_path, dataset, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(BagError, match="Permission denied"):
        pack_bags(dataset, tmp_path / "store")


def test_killed_pack_leaves_no_store(tmp_path, dataset):
    code = (
        "import os, sys, numpy as np; from pathlib import Path;"
        "from sgpmil.bags import BagDataset, pack_bags;"
        "pack_bags(BagDataset.from_arrays([np.ones((2, 3))] * 3), Path(sys.argv[1]),"
        " on_bag=lambda slide_id: os._exit(9) if slide_id == 'bag-1' else None)"
    )
    path = tmp_path / "store"
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == 9
    assert not path.exists()
    assert not is_store(path)
    assert torch.equal(pack_bags(dataset, path).read("a").features, dataset[0].features)


@given(st.lists(st.integers(0, 200), max_size=12), st.sampled_from(["float16", "int64"]))
def test_grows_as_one_array(tmp_path_factory, sizes, dtype):
    path = tmp_path_factory.mktemp("array") / "a.npy"
    blocks = [np.full((size, 3), i) for i, size in enumerate(sizes)]
    with ArrayWriter(path, (3,), dtype) as writer:
        for block in blocks:
            writer.append(block)
    found = np.load(path)
    assert found.dtype == np.dtype(dtype)
    assert np.array_equal(found, np.concatenate([np.zeros((0, 3)), *blocks]))


def test_vectors_can_be_mapped(tmp_path):
    with ArrayWriter(tmp_path / "a.npy", (), "int64") as writer:
        writer.append(np.arange(5))
    assert np.load(tmp_path / "a.npy", mmap_mode="r").tolist() == [0, 1, 2, 3, 4]


def test_wrong_rows(tmp_path):
    with (
        pytest.raises(ValueError, match=r"\(2,\) instead of \(3,\)"),
        ArrayWriter(tmp_path / "a.npy", (3,), "float32") as writer,
    ):
        writer.append(np.zeros((1, 2)))
