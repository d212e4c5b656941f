import h5py
import numpy as np
import pytest

from sgpmil.bags.readers import detect_format, read_bag
from sgpmil.bags.readers.stamp import peek, read


def _write(path, features, name="feats", **attributes):
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
    path = _write(tmp_path / "a.h5", features(2, 3), name)
    assert detect_format(path) == "stamp"
    bag = read_bag(path)
    assert np.array_equal(bag.features.numpy(), features(2, 3))
    assert bag.coords.tolist() == [[0, 256], [512, 768]]
    assert bag.patch_size == 256


def test_pixels_where_the_pixel_size_is_known(tmp_path, features):
    raw = read(_write(tmp_path / "a.h5", features(2, 3), mpp=0.5))
    assert raw.coords.tolist() == [[0, 512], [1024, 1536]]
    assert raw.patch_size == 512


def test_header(tmp_path, features):
    header = peek(_write(tmp_path / "a.h5", features(2, 3)))
    assert (header.encoder, header.dtype, header.patch_size) == ("conch", "float16", 256)
