import h5py
import numpy as np
import pytest

from sgpmil.bags.readers.hdf5 import open_hdf5
from sgpmil.bags.readers.trident import peek, read
from sgpmil.errors import BagError


def test_absent_file(tmp_path):
    with pytest.raises(BagError, match=r"there is none .*a\.h5"), open_hdf5(tmp_path / "a.h5"):
        pass


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_file_is_a_bag_error(tmp_path, features, write_trident, share):
    path = write_trident(tmp_path / "a.h5", features(200, 64))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BagError, match=r"a\.h5"):
        read(path)


def test_damage_inside_is_a_bag_error(tmp_path, features, write_trident):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=features(300, 64), compression="gzip")
        offset = file["features"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 200] = b"\xff" * 200
    path.write_bytes(content)
    assert peek(path).num_instances == 300
    with pytest.raises(BagError, match="readable HDF5"):
        read(path)


def test_group_in_place_of_features(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("features")
    with pytest.raises(BagError, match="Expected a dataset 'features'"):
        read(tmp_path / "a.h5")


def test_text_features(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = np.array([[b"a", b"b"]], dtype="S1")
    with pytest.raises(BagError, match="real numbers"):
        read(tmp_path / "a.h5")
