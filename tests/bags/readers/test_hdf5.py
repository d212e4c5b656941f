import h5py
import numpy as np
import pytest
import torch

from sgpmil.bags.readers.formats import detect_format, peek_bag
from sgpmil.bags.readers.hdf5 import CLAM, STAMP, TRIDENT, open_hdf5
from sgpmil.errors import BagError, EmptyBagError

from .bag_file import read_bag


def test_absent_file(tmp_path):
    with pytest.raises(BagError, match=r"there is none .*a\.h5"), open_hdf5(tmp_path / "a.h5"):
        pass


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_file_is_a_bag_error(tmp_path, features, write_trident, share):
    path = write_trident(tmp_path / "a.h5", features(200, 64))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BagError, match=r"a\.h5"):
        TRIDENT.read(path)


def test_damage_inside_is_a_bag_error(tmp_path, features, write_trident):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=features(300, 64), compression="gzip")
        offset = file["features"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 200] = b"\xff" * 200
    path.write_bytes(content)
    assert TRIDENT.peek(path).num_instances == 300
    with pytest.raises(BagError, match="readable HDF5"):
        TRIDENT.read(path)


def test_group_in_place_of_features(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("features")
    with pytest.raises(BagError, match="Expected a dataset 'features'"):
        TRIDENT.read(tmp_path / "a.h5")


def test_text_features(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = np.array([[b"a", b"b"]], dtype="S1")
    with pytest.raises(BagError, match="real numbers"):
        TRIDENT.read(tmp_path / "a.h5")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_become_float32(tmp_path, features, write_trident, dtype):
    stored = features(6, 3, dtype=dtype)
    raw = TRIDENT.read(write_trident(tmp_path / "a.h5", stored))
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
        TRIDENT.read(write_trident(tmp_path / "a.h5", stored, np.zeros((2, 3, 2))))


def test_float_coords_are_rounded(tmp_path, features, write_trident):
    coords = np.array([[0.4, 511.9999]])
    raw = TRIDENT.read(write_trident(tmp_path / "a.h5", features(1, 2), coords))
    assert raw.coords.tolist() == [[0, 512]]


@pytest.mark.parametrize("shape", [(0, 4), (0,)])
def test_empty_slides(tmp_path, write_trident, shape):
    path = write_trident(tmp_path / "a.h5", np.zeros(shape, "float32"), np.zeros((0, 2), int))
    assert peek_bag(path).num_instances == 0
    with pytest.raises(EmptyBagError, match=r"a\.h5"):
        read_bag(path)


def test_header_reads_attributes(tmp_path, features, write_trident):
    header = TRIDENT.peek(write_trident(tmp_path / "a.h5", features(6, 3, dtype="float16")))
    assert (header.num_instances, header.feature_dim, header.dtype) == (6, 3, "float16")
    assert (header.encoder, header.magnification, header.patch_size) == ("uni_v1", 20.0, 512)
    assert header.has_coords
    assert not header.has_instance_labels


def test_patch_size_is_computed_where_it_is_not_stored(tmp_path, features, write_trident):
    path = write_trident(tmp_path / "a.h5", features())
    with h5py.File(path, "a") as file:
        file["coords"].attrs["patch_size_level0"] = "None"
    assert TRIDENT.read(path).patch_size == 512
    with h5py.File(path, "a") as file:
        del file["coords"].attrs["level0_magnification"]
    assert TRIDENT.read(path).patch_size is None


def test_coords_may_be_absent(tmp_path, features, write_trident):
    path = write_trident(tmp_path / "a.h5", features())
    with h5py.File(path, "a") as file:
        del file["coords"]
    assert TRIDENT.read(path).coords is None
    assert not TRIDENT.peek(path).has_coords


def test_coords_of_another_length_are_refused(tmp_path, features, write_trident):
    path = write_trident(tmp_path / "a.h5", features(5), np.zeros((4, 2), int))
    with pytest.raises(BagError, match=r"\(5, 2\).*\(4, 2\).*a\.h5"):
        TRIDENT.read(path)


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


def _write_clam(path, features):
    with h5py.File(path, "w") as file:
        chunks = (32, features.shape[1])
        file.create_dataset("features", data=features, maxshape=(None, chunks[1]), chunks=chunks)
        file.create_dataset("coords", data=np.arange(2 * len(features), dtype="i4").reshape(-1, 2))
    return path


def test_clam(tmp_path, features):
    path = _write_clam(tmp_path / "a.h5", features(6, 3))
    assert detect_format(path) == "clam-h5"
    raw = CLAM.read(path)
    assert np.array_equal(raw.features.numpy(), features(6, 3))
    assert raw.coords.dtype == torch.int64
    assert raw.patch_size is None
    assert CLAM.peek(path).encoder is None


def test_level0_patch_size_of_coordinate_attributes(tmp_path, features):
    path = _write_clam(tmp_path / "a.h5", features(6, 3))
    with h5py.File(path, "a") as file:
        file["coords"].attrs["patch_size"] = 256
        file["coords"].attrs["downsample"] = (4.0, 4.0)
    assert CLAM.read(path).patch_size == 1024


def _write_stamp(path, features, name="feats", **attributes):
    with h5py.File(path, "w") as file:
        file[name] = features.astype("float16")
        file["coords"] = np.array([[0, 256], [512.25, 767.75]], dtype="float32")
        file.attrs.update(
            {
                "stamp_version": "2.0.0",
                "extractor": "conch",
                "unit": "um",
                "tile_size_um": 256.0,
                "tile_size_px": 224,
                "feat_type": "tile",
                **attributes,
            }
        )
    return path


@pytest.mark.parametrize("name", ["feats", "patch_embeddings"])
def test_micrometres_stay_without_a_pixel_size(tmp_path, features, name):
    path = _write_stamp(tmp_path / "a.h5", features(2, 3), name)
    assert detect_format(path) == "stamp"
    bag = read_bag(path)
    assert np.array_equal(bag.features.numpy(), features(2, 3))
    assert bag.coords.tolist() == [[0, 256], [512, 768]]
    assert bag.patch_size == 256


def test_pixels_where_the_pixel_size_is_known(tmp_path, features):
    raw = STAMP.read(_write_stamp(tmp_path / "a.h5", features(2, 3), mpp=0.5))
    assert raw.coords.tolist() == [[0, 512], [1024, 1536]]
    assert raw.patch_size == 512


def test_stamp_header(tmp_path, features):
    header = STAMP.peek(_write_stamp(tmp_path / "a.h5", features(2, 3)))
    assert (header.encoder, header.dtype, header.patch_size) == ("conch", "float16", 256)
