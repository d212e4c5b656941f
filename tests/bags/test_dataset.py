import os
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.readers.formats import find_bag_files
from sgpmil.bags.sources import FolderSource, MemorySource
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import BagError, EmptyBagError, LabelError


@pytest.fixture
def dataset(features):
    return BagDataset.from_arrays(
        [features(3, 2), features(1, 2, 1), torch.from_numpy(features(4, 2, 2))],
        labels=["tumor", None, "normal"],
        slide_ids=["a", "b", "c"],
        case_ids=["p", "p", "q"],
        coords=[np.zeros((3, 2)), None, None],
        instance_labels=[[0, 1, 0], None, None],
    )


def test_from_arrays(dataset, features):
    assert dataset.labels == (1, None, 0)
    assert dataset.class_names == ("normal", "tumor")
    assert (len(dataset), dataset.num_classes, dataset.feature_dim) == (3, 2, 2)
    assert dataset.num_instances == (3, 1, 4)
    first, last = dataset[0], dataset[-1]
    assert (first.slide_id, first.case_id, first.label) == ("a", "p", 1)
    assert first.instance_labels.tolist() == [0, 1, 0]
    assert np.array_equal(last.features.numpy(), features(4, 2, 2))
    assert [bag.slide_id for bag in dataset] == ["a", "b", "c"]
    with pytest.raises(IndexError):
        dataset[3]


def test_defaults():
    dataset = BagDataset.from_arrays([np.ones((1, 2)), np.ones((2, 2))])
    assert dataset.slide_ids == dataset.case_ids == ("bag-0", "bag-1")
    assert dataset.labels == (None, None)
    assert dataset.num_classes == 0


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        ([1, 0], None, (1, 0)),
        (np.array([-1, 1]), None, (0, 1)),
        (torch.tensor([2, 7]), None, (0, 1)),
        ([True, False], None, (1, 0)),
        (np.array([1.0, 0.0]), None, (1, 0)),
        ([2, 0], ["x", "y", "z"], (2, 0)),
        (["z", "x"], ["x", "y", "z"], (2, 0)),
    ],
)
def test_labels_of_many_kinds(labels, names, expected):
    dataset = BagDataset.from_arrays([np.ones((1, 2))] * 2, labels, class_names=names)
    assert dataset.labels == expected


@pytest.mark.parametrize("labels", [[0, 3], [0, -1], [0, 0.5]])
def test_labels_outside_the_classes(labels):
    with pytest.raises(LabelError, match="from 0 to 2"):
        BagDataset.from_arrays([np.ones((1, 2))] * 2, labels, class_names=["x", "y", "z"])


def test_fractions_are_no_classes():
    with pytest.raises(LabelError, match=r"0\.5"):
        BagDataset.from_arrays([np.ones((1, 2))], [0.5])


def test_differing_dims_name_slides_and_dims():
    with pytest.raises(BagError, match=r"2 in 2 slides \('a', 'c'\); 3 in 1 slides \('b'\)"):
        BagDataset.from_arrays(
            [np.ones((1, 2)), np.ones((1, 3)), np.ones((1, 2))], slide_ids=["a", "b", "c"]
        )


def test_wrong_arrays():
    with pytest.raises(EmptyBagError, match="bag-1"):
        BagDataset.from_arrays([np.ones((1, 2)), np.ones((0, 2))])
    with pytest.raises(BagError, match="finite"):
        BagDataset.from_arrays([np.full((1, 2), np.inf)])
    with pytest.raises(BagError, match=r"2 labels.*got 1"):
        BagDataset.from_arrays([np.ones((1, 2))] * 2, [1])
    with pytest.raises(BagError, match="at least one bag"):
        BagDataset.from_arrays([])
    with pytest.raises(BagError, match="1 more than once: 'a'"):
        BagDataset.from_arrays([np.ones((1, 2))] * 2, slide_ids=["a", "a"])
    with pytest.raises(BagError, match=r"shape \(2,\) \('bag-0'\). Give a list of bags"):
        BagDataset.from_arrays(list(np.ones((5, 2))))  # one bag, not a list of one


def test_subset_keeps_the_order_given(dataset):
    part = dataset.subset(["c", "a"])
    assert part.slide_ids == ("c", "a")
    assert part.case_ids == ("q", "p")
    assert part.labels == (0, 1)
    assert part.class_names == dataset.class_names
    assert part[0].slide_id == "c"
    assert part.index("a") == 1
    with pytest.raises(BagError, match="1 that are not among its 3: 'x'"):
        dataset.subset(["a", "x"])
    with pytest.raises(BagError, match="'b'"):
        part.index("b")


def test_label_table_has_the_labelled_slides(dataset):
    table = dataset.label_table()
    assert table.slide_ids == ("a", "c")
    assert table.labels == ("tumor", "normal")
    assert table.case_ids == ("p", "q")


@pytest.fixture
def folder_dataset(tmp_path, features, write_trident):
    for name, count in (("a", 3), ("b", 2)):
        write_trident(tmp_path / f"{name}.h5", features(count, 4))
    source = FolderSource(find_bag_files(tmp_path))
    return BagDataset(source, ("a", "b"), ("p", "q"), (1, 0), ClassTarget(("x", "y")))


def test_in_memory_reads_once(folder_dataset, tmp_path):
    seen = []
    held = folder_dataset.in_memory(seen.append)
    assert seen == ["a", "b"]
    assert isinstance(held.source, MemorySource)
    assert held.fingerprint() == folder_dataset.fingerprint()
    expected = folder_dataset[0].features
    (tmp_path / "a.h5").unlink()
    assert torch.equal(held[0].features, expected)
    assert (held[0].label, held[0].case_id) == (1, "p")


def test_size_estimate(folder_dataset):
    held = folder_dataset.in_memory()
    exact = sum(bag.features.nbytes + bag.coords.nbytes for bag in held)
    assert folder_dataset.nbytes_estimate() == exact


def test_fingerprint_follows_files_labels_and_order(folder_dataset, tmp_path):
    first = folder_dataset.fingerprint()
    assert folder_dataset.fingerprint() == first
    relabelled = BagDataset(
        folder_dataset.source, ("a", "b"), ("p", "q"), (0, 0), ClassTarget(("x", "y"))
    )
    assert relabelled.fingerprint() != first
    assert folder_dataset.subset(["b", "a"]).fingerprint() != first
    os.utime(tmp_path / "a.h5", ns=(1, 1))
    assert folder_dataset.fingerprint() == first
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["features"][0, 0] += 1
    assert folder_dataset.fingerprint() != first


def test_a_copy_of_the_bags_has_the_same_fingerprint(folder_dataset, tmp_path):
    copied = tmp_path / "copied"
    copied.mkdir()
    for path in tmp_path.glob("*.h5"):
        shutil.copyfile(path, copied / path.name)
        os.utime(copied / path.name, ns=(1, 1))
    again = replace(folder_dataset, source=FolderSource(find_bag_files(copied)))
    assert again.fingerprint() == folder_dataset.fingerprint()


def test_works_in_a_data_loader(folder_dataset):
    loader = torch.utils.data.DataLoader(folder_dataset, batch_size=None, num_workers=1)
    assert [bag.label for bag in loader] == [1, 0]


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", "", "/etc/x"])
def test_names_that_would_leave_the_folder_are_refused(name):
    with pytest.raises(BagError, match="can be file names"):
        BagDataset.from_arrays([np.ones((2, 2))], slide_ids=[name])


def test_labels_are_translated_by_class_name():
    features = [np.ones((1, 2))] * 3
    data = BagDataset.from_arrays(features, [0, 1, None], class_names=("tumor", "normal"))
    other = data.with_target(ClassTarget(("normal", "stroma", "tumor")))
    assert other.labels == (2, 0, None)
    assert other[0].label == 2
    with pytest.raises(LabelError, match="'tumor'"):
        data.with_target(ClassTarget(("normal", "stroma")))
