import numpy as np
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.inspection import ClassCount, InstanceCounts, inspect_folder
from sgpmil.bags.labels import LabelTable, read_labels
from sgpmil.bags.packing import pack_bags
from sgpmil.bags.splits import make_kfold
from sgpmil.errors import BagError, LabelError, SplitError


def test_good_folder(tmp_path, features, write_trident):
    for i, name in enumerate("abcd"):
        write_trident(tmp_path / f"{name}.h5", features(i + 1, 4))
    seen = []
    labels = LabelTable(tuple("abcd"), tuple("abcd"), ("tumor", "normal", "tumor", "tumor"))
    found = inspect_folder(tmp_path, labels, num_folds=1, on_bag=seen.append)
    assert seen == list("abcd")
    assert found.is_ready
    assert found.formats == ("trident",)
    assert found.encoders == ("uni_v1",)
    assert found.feature_dims == (4,)
    assert found.magnifications == (20.0,)
    assert found.patch_sizes == (512,)
    assert found.num_slides == 4
    assert found.instances == InstanceCounts(1, 2.5, 4, 10)
    assert found.num_with_coords == found.num_usable > 0
    assert found.num_with_instance_labels == 0
    assert found.class_counts == (ClassCount("normal", 1, 1, 1), ClassCount("tumor", 3, 3, 3))


def test_every_fault_is_noted_and_none_raised(tmp_path, features, write_trident):
    write_trident(tmp_path / "good.h5", features(2, 4))
    write_trident(tmp_path / "empty.h5", np.zeros((0, 4), "float32"))
    write_trident(tmp_path / "nan.h5", np.full((2, 4), np.nan, "float32"))
    whole = write_trident(tmp_path / "cut.h5", features(2, 4)).read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[:-50])
    torch.save({"a": 1}, tmp_path / "dict.pt")
    torch.save(torch.ones(3, 5), tmp_path / "good.pt")
    table = LabelTable(("good", "absent"), ("p", "q"), ("0", "1"))
    found = inspect_folder(tmp_path, table)
    assert found.empty == ("empty",)
    assert found.non_finite == ("nan",)
    assert [slide.slide_id for slide in found.unreadable] == ["cut", "dict"]
    assert "cut.h5" in found.unreadable[0].reason
    assert found.duplicates == ("good",)
    assert found.missing == ("absent",)
    assert found.unlabelled == ("cut", "dict", "empty", "nan")
    assert found.feature_dims == (4, 5)
    assert found.num_slides == 5
    assert not found.is_ready


def test_nothing_usable(tmp_path, write_trident):
    write_trident(tmp_path / "a.h5", np.zeros((0, 4), "float32"))
    found = inspect_folder(tmp_path)
    assert found.instances == InstanceCounts(0, 0.0, 0, 0)
    assert found.num_usable == found.num_with_coords == 0
    assert found.class_counts == ()


def test_no_bags(tmp_path):
    with pytest.raises(BagError, match="empty folder"):
        inspect_folder(tmp_path)


def test_store_brings_its_labels(tmp_path, features):
    dataset = BagDataset.from_arrays([features(2), features(3)], ["x", "y"])
    found = inspect_folder(pack_bags(dataset, tmp_path / "store").path, num_folds=1)
    assert found.formats == ("packed store",)
    assert found.class_counts == (ClassCount("x", 1, 1, 1), ClassCount("y", 1, 1, 1))
    assert found.is_ready


def test_colon(shared_data):
    labels = read_labels(shared_data / "colon" / "labels.csv")
    found = inspect_folder(shared_data / "colon", labels)
    assert found.is_ready
    assert found.num_with_instance_labels == found.num_usable > 0
    assert [(count.name, count.num_slides) for count in found.class_counts] == [
        ("no_epithelium", 34),
        ("epithelium", 36),
    ]


def test_classic_set(shared_data):
    found = inspect_folder(shared_data / "classic_mil" / "musk1.npz")
    assert (found.num_slides, found.feature_dims) == (92, (166,))
    assert sum(count.num_slides for count in found.class_counts) == 92


def test_the_order_of_grades_is_shown_and_asked_for(tmp_path, features, write_trident):
    for i, name in enumerate("abcd"):
        write_trident(tmp_path / f"{name}.h5", features(i + 1, 4))
    labels = LabelTable(tuple("abcd"), tuple("abcd"), ("G5", "NC", "G3", "G5"))
    plain = inspect_folder(tmp_path, labels)
    assert [count.name for count in plain.class_counts] == ["NC", "G3", "G5"]
    assert plain.order == "looks like NC < G3 < G5 (grades): pass `ordinal=True`"
    known = inspect_folder(tmp_path, labels, ordinal=True)
    assert known.order == "NC < G3 < G5 (known grades)"
    given = inspect_folder(tmp_path, labels, classes=("G5", "G3", "NC", "X"), ordinal=True)
    assert given.order == "G5 < G3 < NC < X (as given)"
    assert given.class_counts[-1] == ClassCount("X", 0, 0, 0)
    twice = LabelTable(tuple("abcd"), tuple("abcd"), ("negative", "0+0", "3+4", "4+3"))
    said = inspect_folder(tmp_path, twice).order
    assert said == "'0+0', 'negative' mean the same (Gleason scores): join them in the table"
    of_names = LabelTable(tuple("abcd"), tuple("abcd"), ("LUAD", "LUSC", "LUAD", "LUSC"))
    assert inspect_folder(tmp_path, of_names).order == ""
    with pytest.raises(LabelError, match="known order, but got 'LUAD', 'LUSC'"):
        inspect_folder(tmp_path, of_names, ordinal=True)


def test_a_class_with_fewer_patients_than_folds_is_not_ready(tmp_path, features, write_trident):
    names = tuple("abcdefghij")
    for name in names:
        write_trident(tmp_path / f"{name}.h5", features(2, 4))
    # Six slides of tumour come from three patients, the last of whom has a normal slide, too.
    cases = ("p", "p", "q", "q", "r", "r", "r", "s", "t", "u")
    labels = LabelTable(names, cases, ("tumor",) * 6 + ("normal",) * 4)
    found = inspect_folder(tmp_path, labels, num_folds=5)
    assert not found.is_ready
    assert found.rare_classes == found.class_counts
    for num_folds in (2, 3, 4, 5):
        ready = inspect_folder(tmp_path, labels, num_folds=num_folds).is_ready
        try:
            make_kfold(labels, num_folds=num_folds)
        except SplitError:
            assert not ready
        else:
            assert ready


def test_copies_under_other_names_are_found(tmp_path, features, write_trident):
    for name, seed in (("a", 1), ("b", 2), ("c", 1), ("d", 3)):
        torch.manual_seed(seed)
        write_trident(tmp_path / f"{name}.h5", torch.randn(3, 4).numpy())
    assert inspect_folder(tmp_path).copies == (("a", "c"),)


def test_patients_with_slides_of_both_classes_are_patients_of_both(
    tmp_path, features, write_trident
):
    names = tuple("abcdef")
    for name in names:
        write_trident(tmp_path / f"{name}.h5", features(2, 4))
    labels = LabelTable(names, ("p", "p", "q", "q", "r", "r"), ("normal", "tumor") * 3)
    found = inspect_folder(tmp_path, labels, num_folds=3)
    assert [count.num_patients for count in found.class_counts] == [3, 3]
    assert found.is_ready
    assert len(make_kfold(labels, num_folds=3)) == 3
