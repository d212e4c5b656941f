import h5py
import numpy as np
import pytest
import torch

from sgpmil.bags.readers import peek_bag, read_bag
from sgpmil.bags.readers.trident import peek, read
from sgpmil.errors import BagError, EmptyBagError


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_become_float32(tmp_path, features, write_trident, dtype):
    stored = features(6, 3, dtype=dtype)
    raw = read(write_trident(tmp_path / "a.h5", stored))
    assert raw.features.dtype == torch.float32
    assert np.array_equal(raw.features.numpy(), stored.astype("float32"))
    assert raw.coords.tolist()[1] == [1024, 1536]
    assert raw.patch_size == 512


@pytest.mark.parametrize("count", [1, 5])
def test_batch_axis_is_dropped_from_both(tmp_path, features, write_trident, count):
    stored, coords = features(count, 3)[None], np.full((1, count, 2), 7)
    bag = read_bag(write_trident(tmp_path / "a.h5", stored, coords))
    assert bag.features.shape == (count, 3)
    assert bag.coords.tolist() == [[7, 7]] * count


def test_two_in_the_batch_axis_are_refused(tmp_path, features, write_trident):
    stored = np.stack([features(3, 2), features(3, 2)])
    with pytest.raises(BagError, match=r"\(2, 3, 2\)"):
        read(write_trident(tmp_path / "a.h5", stored, np.zeros((2, 3, 2))))


def test_float_coords_are_rounded(tmp_path, features, write_trident):
    coords = np.array([[0.4, 511.9999]])
    raw = read(write_trident(tmp_path / "a.h5", features(1, 2), coords))
    assert raw.coords.tolist() == [[0, 512]]


@pytest.mark.parametrize("shape", [(0, 4), (0,)])
def test_empty_slides(tmp_path, write_trident, shape):
    path = write_trident(tmp_path / "a.h5", np.zeros(shape, "float32"), np.zeros((0, 2), int))
    assert peek_bag(path).num_instances == 0
    with pytest.raises(EmptyBagError, match=r"a\.h5"):
        read_bag(path)


def test_header_reads_attributes(tmp_path, features, write_trident):
    header = peek(write_trident(tmp_path / "a.h5", features(6, 3, dtype="float16")))
    assert (header.num_instances, header.feature_dim, header.dtype) == (6, 3, "float16")
    assert (header.encoder, header.magnification, header.patch_size) == ("uni_v1", 20.0, 512)
    assert header.has_coords
    assert not header.has_instance_labels


def test_patch_size_is_computed_where_it_is_not_stored(tmp_path, features, write_trident):
    path = write_trident(tmp_path / "a.h5", features())
    with h5py.File(path, "a") as file:
        file["coords"].attrs["patch_size_level0"] = "None"
    assert read(path).patch_size == 512
    with h5py.File(path, "a") as file:
        del file["coords"].attrs["level0_magnification"]
    assert read(path).patch_size is None


def test_coords_may_be_absent(tmp_path, features, write_trident):
    path = write_trident(tmp_path / "a.h5", features())
    with h5py.File(path, "a") as file:
        del file["coords"]
    assert read(path).coords is None
    assert not peek(path).has_coords


def test_coords_of_another_length_are_refused(tmp_path, features, write_trident):
    path = write_trident(tmp_path / "a.h5", features(5), np.zeros((4, 2), int))
    with pytest.raises(BagError, match=r"\(5, 2\).*\(4, 2\).*a\.h5"):
        read(path)


def test_nan_names_the_file(tmp_path, features, write_trident):
    stored = features()
    stored[3, 0] = np.nan
    with pytest.raises(BagError, match=r"a\.h5: .*row 3"):
        read_bag(write_trident(tmp_path / "a.h5", stored))


def test_real_nuclei(shared_data):
    bag = read_bag(shared_data / "colon" / "features" / "img001.h5")
    assert bag.features.shape == (20, 1280)
    assert bag.instance_labels.shape == (20,)
    assert bag.patch_size == 48
