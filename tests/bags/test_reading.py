import os

import numpy as np
import pytest
import torch

from sgpmil.bags.labels import LabelTable
from sgpmil.bags.packing import pack_bags
from sgpmil.bags.reading import (
    EmptySlideWarning,
    SkippedSlideWarning,
    is_packed_npz,
    read_bags,
    read_packed_npz,
)
from sgpmil.bags.store import PackedStore
from sgpmil.errors import BagError, EmptyBagError, LabelError


@pytest.fixture
def folder(tmp_path, features, write_trident):
    for i, name in enumerate("abc"):
        write_trident(tmp_path / "in" / f"{name}.h5", features(i + 1, 4, i))
    return tmp_path / "in"


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("slide_id,case_id,label\nc,p1,tumor\na,p1,normal\nb.svs,p2,tumor\n")
    return path


def test_bags_meet_their_labels(folder, labels, features):
    dataset = read_bags(str(folder), str(labels))
    assert dataset.slide_ids == ("a", "b", "c")
    assert dataset.case_ids == ("p1", "p2", "p1")
    assert dataset.labels == (0, 1, 1)
    assert dataset.class_names == ("normal", "tumor")
    assert np.array_equal(dataset[2].features.numpy(), features(3, 4, 2))
    assert dataset[2].label == 1


def test_given_classes(folder, labels):
    dataset = read_bags(folder, labels, classes=["tumor", "normal", "other"])
    assert dataset.labels == (1, 0, 0)
    assert dataset.num_classes == 3


def test_without_labels(folder):
    dataset = read_bags(folder)
    assert dataset.labels == (None, None, None)
    assert dataset.case_ids == dataset.slide_ids


def test_opening_reads_no_features(folder, labels, monkeypatch):
    def refuse(*args):
        raise AssertionError("features were read")

    monkeypatch.setattr("sgpmil.bags.readers.formats.read_raw", refuse)
    dataset = read_bags(folder, labels)
    assert dataset.num_instances == (1, 2, 3)
    with pytest.raises(AssertionError):
        dataset[0]


def test_mismatch_lists_both_sides(folder):
    table = LabelTable(("a", "x", "y"), ("a", "x", "y"), ("0", "0", "1"))
    with pytest.raises(
        LabelError,
        match=r"2 slides without a label \('b', 'c'\) and 2 labels without a slide \('x', 'y'\)",
    ):
        read_bags(folder, table)
    with pytest.warns(SkippedSlideWarning, match="2 slides without a label"):
        assert read_bags(folder, table, on_mismatch="skip").slide_ids == ("a",)


def test_no_overlap_is_an_error_even_when_skipping(folder):
    table = LabelTable(("x",), ("x",), ("0",))
    with pytest.raises(LabelError, match="'a', but got only such as 'x'"):
        read_bags(folder, table, on_mismatch="skip")


def test_empty_slides_are_left_out_and_their_labels_do_not_count(folder, labels, write_trident):
    write_trident(folder / "b.h5", np.zeros((0, 4), "float32"))
    with pytest.warns(EmptySlideWarning, match=r"1 of 3 slides .*'b'"):
        assert read_bags(folder, labels).slide_ids == ("a", "c")


def test_only_empty_slides(tmp_path, write_trident):
    write_trident(tmp_path / "a.h5", np.zeros((0, 4), "float32"))
    with pytest.raises(BagError, match="1 empty and 0 damaged"):
        read_bags(tmp_path)


def test_damaged_file(folder, labels):
    (folder / "b.h5").write_bytes(b"damaged")
    with pytest.raises(BagError, match=r"1 of 3 that are not: 'b'.*`on_bad=.skip.`.*b\.h5"):
        read_bags(folder, labels)
    with pytest.warns(SkippedSlideWarning, match=r"1 of 3 slides are not usable"):
        assert read_bags(folder, labels, on_bad="skip").slide_ids == ("a", "c")


def test_nan_is_found_when_read_or_when_skipping(folder, labels, write_trident):
    write_trident(folder / "b.h5", np.full((2, 4), np.nan, "float32"))
    dataset = read_bags(folder, labels)
    with pytest.raises(BagError, match=r"b\.h5"):
        dataset[1]
    with pytest.warns(SkippedSlideWarning, match="'b'"):
        assert read_bags(folder, labels, on_bad="skip").slide_ids == ("a", "c")


def test_nothing_usable_when_skipping(tmp_path, write_trident):
    write_trident(tmp_path / "a.h5", np.full((2, 4), np.nan, "float32"))
    with pytest.raises(BagError, match="1 of 1"):
        read_bags(tmp_path, on_bad="skip")


def test_differing_dims(folder, features, write_trident):
    write_trident(folder / "b.h5", features(2, 5))
    with pytest.raises(BagError, match=r"4 in 2 slides \('a', 'c'\); 5 in 1 slides \('b'\)"):
        read_bags(folder)


def test_two_files_of_a_slide(folder):
    torch.save(torch.ones(2, 4), folder / "b.pt")
    with pytest.raises(BagError, match=r"'b' has 'b\.h5' and 'b\.pt'"):
        read_bags(folder)


def test_packed_store_with_its_own_or_other_labels(folder, labels, tmp_path):
    pack_bags(read_bags(folder, labels), tmp_path / "store")
    assert read_bags(tmp_path / "store").labels == (0, 1, 1)
    other = LabelTable(("a", "b", "c"), ("a", "b", "c"), ("2", "0", "1"))
    assert read_bags(tmp_path / "store", other).labels == (2, 0, 1)


def test_cache_is_made_used_and_renewed(folder, labels, tmp_path, features, write_trident):
    cache = tmp_path / "cache"
    plain = read_bags(folder, labels)
    cached = read_bags(folder, labels, cache=cache)
    assert isinstance(cached.source, PackedStore)
    assert cached.fingerprint() == plain.fingerprint()
    made = (cache / "features.npy").stat().st_mtime_ns
    read_bags(folder, labels, cache=cache)
    assert (cache / "features.npy").stat().st_mtime_ns == made
    write_trident(folder / "b.h5", features(6, 4, 9))
    renewed = read_bags(folder, labels, cache=cache)
    assert np.array_equal(renewed[1].features.numpy(), features(6, 4, 9))
    os.truncate(cache / "features.npy", 100)
    repaired = read_bags(folder, labels, cache=cache)
    assert np.array_equal(repaired[1].features.numpy(), features(6, 4, 9))


def test_cache_remembers_bags_left_out(folder, labels, tmp_path, write_trident):
    write_trident(folder / "b.h5", np.full((2, 4), np.nan, "float32"))
    cache = tmp_path / "cache"
    for _ in range(2):
        with pytest.warns(SkippedSlideWarning, match="'b'"):
            dataset = read_bags(folder, labels, on_bad="skip", cache=cache)
        assert dataset.slide_ids == ("a", "c")
    with pytest.raises(BagError, match=r"b\.h5"):
        read_bags(folder, labels, cache=cache)


def test_cache_never_replaces_another_folder(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(BagError, match="other files"):
        read_bags(folder, cache=tmp_path / "mine")


def test_colon(shared_data, tmp_path):
    folder = shared_data / "colon"
    dataset = read_bags(folder, folder / "labels.csv", cache=tmp_path / "cache")
    assert len(dataset) == 70
    assert dataset.class_names == ("no_epithelium", "epithelium")
    for bag in dataset:
        assert bag.label == int(bag.instance_labels.max() > 0)


def test_classic_set(shared_data):
    dataset = read_bags(shared_data / "classic_mil" / "musk1.npz")
    assert (len(dataset), dataset.feature_dim, sum(dataset.labels)) == (92, 166, 47)


def test_bags_and_labels(tmp_path, features):
    path = tmp_path / "set.npz"
    np.savez(path, features=features(6, 3), offsets=[0, 1, 6], labels=[1, 0])
    assert is_packed_npz(path)
    dataset = read_packed_npz(path)
    assert dataset.slide_ids == ("set-0", "set-1")
    assert dataset.labels == (1, 0)
    assert np.array_equal(dataset[1].features.numpy(), features(6, 3)[1:])


def test_names_and_instance_labels(tmp_path, features):
    path = tmp_path / "set.npz"
    np.savez(
        path,
        features=features(3, 2),
        offsets=[0, 1, 3],
        slide_ids=["x", "y"],
        instance_labels=[0, 1, 0],
    )
    dataset = read_packed_npz(path)
    assert dataset.slide_ids == ("x", "y")
    assert dataset[1].instance_labels.tolist() == [1, 0]


@pytest.mark.parametrize("offsets", [[0, 7], [1, 6], [0, 4, 2, 6], [0.0, 6.0], [[0, 6]], [0]])
def test_wrong_offsets(tmp_path, features, offsets):
    np.savez(tmp_path / "a.npz", features=features(6, 3), offsets=offsets)
    with pytest.raises(BagError, match=r"offsets.*a\.npz"):
        read_packed_npz(tmp_path / "a.npz")


def test_empty_bag_names_file_and_bag(tmp_path, features):
    np.savez(tmp_path / "a.npz", features=features(6, 3), offsets=[0, 6, 6])
    with pytest.raises(EmptyBagError, match=r"a\.npz: .*a-1"):
        read_packed_npz(tmp_path / "a.npz")


def test_other_files_are_none(tmp_path, features):
    np.savez(tmp_path / "one.npz", features=features())
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04")
    np.save(tmp_path / "a.npy", features())
    for name in ("one.npz", "damaged.npz", "a.npy", "absent.npz"):
        assert not is_packed_npz(tmp_path / name)
    with pytest.raises(BagError, match="Add offsets"):
        read_packed_npz(tmp_path / "one.npz")


@pytest.mark.parametrize(("name", "bags", "dim"), [("musk1", 92, 166), ("fox", 200, 230)])
def test_classic_sets(shared_data, name, bags, dim):
    dataset = read_packed_npz(shared_data / "classic_mil" / f"{name}.npz")
    assert (len(dataset), dataset.feature_dim, dataset.class_names) == (bags, dim, ("0", "1"))
