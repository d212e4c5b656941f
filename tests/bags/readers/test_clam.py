import h5py
import numpy as np
import pytest
import torch

from sgpmil.bags.readers import detect_format, read_bag
from sgpmil.bags.readers.clam import peek_h5, peek_pt, read_h5, read_pt
from sgpmil.errors import BagError, EmptyBagError


def _write_h5(path, features):
    with h5py.File(path, "w") as file:
        chunks = (32, features.shape[1])
        file.create_dataset("features", data=features, maxshape=(None, chunks[1]), chunks=chunks)
        file.create_dataset("coords", data=np.arange(2 * len(features), dtype="i4").reshape(-1, 2))
    return path


def test_h5(tmp_path, features):
    path = _write_h5(tmp_path / "a.h5", features(6, 3))
    assert detect_format(path) == "clam-h5"
    raw = read_h5(path)
    assert np.array_equal(raw.features.numpy(), features(6, 3))
    assert raw.coords.dtype == torch.int64
    assert raw.patch_size is None
    assert peek_h5(path).encoder is None


def test_level0_patch_size_of_coordinate_attributes(tmp_path, features):
    path = _write_h5(tmp_path / "a.h5", features(6, 3))
    with h5py.File(path, "a") as file:
        file["coords"].attrs["patch_size"] = 256
        file["coords"].attrs["downsample"] = (4.0, 4.0)
    assert read_h5(path).patch_size == 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensor(tmp_path, features, dtype):
    path = tmp_path / "TCGA-1.2.pt"
    torch.save(torch.from_numpy(features(6, 3)).to(dtype), path)
    assert detect_format(path) == "clam-pt"
    bag = read_bag(path)
    assert bag.slide_id == "TCGA-1.2"
    assert np.array_equal(bag.features.numpy(), features(6, 3))
    assert bag.coords is None
    header = peek_pt(path)
    assert (header.num_instances, header.feature_dim) == (6, 3)
    assert header.dtype == str(dtype).removeprefix("torch.")


def test_parameter_that_requires_grad(tmp_path):
    torch.save(torch.nn.Parameter(torch.ones(2, 2)), tmp_path / "a.pt")
    assert not read_pt(tmp_path / "a.pt").features.requires_grad


def test_empty_tensor(tmp_path):
    torch.save(torch.zeros(0, 3), tmp_path / "a.pt")
    with pytest.raises(EmptyBagError):
        read_bag(tmp_path / "a.pt")


def test_vector_is_refused(tmp_path):
    torch.save(torch.zeros(3), tmp_path / "a.pt")
    with pytest.raises(BagError, match="slide embedding"):
        read_pt(tmp_path / "a.pt")
