import numpy as np
import pytest

from sgpmil.bags.readers.formats import detect_format, peek_bag
from sgpmil.bags.readers.numpy_files import Npy, Npz, load_npz
from sgpmil.errors import BagError

from .bag_file import read_bag


def test_npy(tmp_path, features):
    np.save(tmp_path / "a.npy", features(4, 3))
    assert detect_format(tmp_path / "a.npy") == "npy"
    assert np.array_equal(read_bag(tmp_path / "a.npy").features.numpy(), features(4, 3))
    assert peek_bag(tmp_path / "a.npy").num_instances == 4


def test_npy_of_torchmil_takes_its_neighbours(tmp_path, features):
    for name in ("features/features_uni", "coords", "patch_labels"):
        (tmp_path / name).mkdir(parents=True)
    path = tmp_path / "features" / "features_uni" / "w.npy"
    np.save(path, features(2, 3))
    np.save(tmp_path / "coords" / "w.npy", np.array([[1, 2], [3, 4]]))
    np.save(tmp_path / "patch_labels" / "w.npy", np.array([[0], [1]]))
    bag = read_bag(path)
    assert bag.coords.tolist() == [[1, 2], [3, 4]]
    assert bag.instance_labels.tolist() == [0, 1]
    header = peek_bag(path)
    assert header.has_coords
    assert header.has_instance_labels


def test_npz_with_everything(tmp_path, features):
    path = tmp_path / "a.npz"
    np.savez_compressed(
        path,
        features=features(2, 3),
        coords=np.ones((2, 2)),
        instance_labels=[0, 1],
        patch_size=256,
    )
    assert detect_format(path) == "npz"
    bag = read_bag(path)
    assert bag.patch_size == 256
    assert bag.coords.tolist() == [[1, 1], [1, 1]]
    assert bag.instance_labels.tolist() == [0, 1]
    assert peek_bag(path).has_instance_labels


def test_npz_of_features_alone(tmp_path, features):
    np.savez(tmp_path / "a.npz", features=features(2, 3))
    raw = Npz.read(tmp_path / "a.npz")
    assert raw.coords is None
    assert raw.instance_labels is None


def test_pickled_objects_are_not_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BagError, match=r"without Python objects"):
        Npy.read(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", features=np.array([{"a": 1}], dtype=object))
    with pytest.raises(BagError, match=r"a\.npz"):
        Npz.read(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_truncated_files(tmp_path, features, name):
    path = tmp_path / name
    (np.save if name == "a.npy" else np.savez_compressed)(path, features(200, 30))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BagError, match=name):
        read_bag(path)
    with pytest.raises(BagError, match=name):
        peek_bag(path)


def test_damaged_member(tmp_path, features):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, features=features(200, 30))
    content = bytearray(path.read_bytes())
    content[200:400] = b"\x00" * 200
    path.write_bytes(content)
    with pytest.raises(BagError, match=r"a\.npz"):
        load_npz(path)


def test_npz_without_features(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(BagError, match=r"'features', but got \['x'\]"):
        Npz.read(tmp_path / "a.npz")


def test_packed_npz_is_not_one_bag(tmp_path, features):
    np.savez(tmp_path / "a.npz", features=features(4, 3), offsets=[0, 1, 4])
    with pytest.raises(BagError, match="2 packed bags"):
        Npz.read(tmp_path / "a.npz")


def test_wrong_patch_size(tmp_path, features):
    np.savez(tmp_path / "a.npz", features=features(4, 3), patch_size=[256, 256])
    with pytest.raises(BagError, match="patch_size"):
        Npz.read(tmp_path / "a.npz")
