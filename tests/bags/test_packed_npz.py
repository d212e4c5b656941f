import numpy as np
import pytest

from sgpmil.bags.packed_npz import is_packed_npz, read_packed_npz
from sgpmil.errors import BagError, EmptyBagError


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
