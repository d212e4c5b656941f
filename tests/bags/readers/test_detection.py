import shutil

import h5py
import numpy as np
import pytest
import torch

from sgpmil.bags.readers import detect_format, peek_bag, read_bag, read_raw
from sgpmil.errors import BagError


def test_content_counts_more_than_the_name(tmp_path, features):
    np.save(tmp_path / "a.npy", features())
    shutil.move(tmp_path / "a.npy", tmp_path / "a.h5x")
    assert detect_format(tmp_path / "a.h5x") == "npy"
    torch.save(torch.ones(2, 2), tmp_path / "b.bin")
    assert detect_format(tmp_path / "b.bin") == "clam-pt"


def test_every_format_is_read_and_peeked_alike(tmp_path, features, write_trident):
    stored = features(4, 3)
    write_trident(tmp_path / "trident.h5", stored)
    with h5py.File(tmp_path / "clam-h5.h5", "w") as file:
        file["features"] = stored
    with h5py.File(tmp_path / "stamp.h5", "w") as file:
        file["feats"] = stored
    torch.save(torch.from_numpy(stored), tmp_path / "clam-pt.pt")
    torch.save(torch.from_numpy(stored), tmp_path / "slideflow.pt")
    np.savez(tmp_path / "slideflow.index.npz", np.zeros((4, 2)))
    np.save(tmp_path / "npy.npy", stored)
    np.savez(tmp_path / "npz.npz", features=stored)
    names = [
        "trident.h5",
        "clam-h5.h5",
        "stamp.h5",
        "clam-pt.pt",
        "slideflow.pt",
        "npy.npy",
        "npz.npz",
    ]
    for path in (tmp_path / name for name in names):
        assert detect_format(path) == path.stem
        bag = read_bag(path)
        assert bag.slide_id == path.stem
        assert np.array_equal(bag.features.numpy(), stored)
        header = peek_bag(path)
        assert (header.num_instances, header.feature_dim) == (4, 3)
        assert header.has_coords == (bag.coords is not None)
        assert header.patch_size == bag.patch_size


@pytest.mark.parametrize("name", ["a.h5", "a.pt", "a.npy", "a.npz"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"PK\x03\x04", b"<html>no such page"])
def test_foreign_content_is_a_bag_error(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for read in (read_bag, peek_bag):
        with pytest.raises(BagError, match=name):
            read(tmp_path / name)


def test_coordinates_alone_are_no_bag(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["coords"] = np.zeros((3, 2))
    with pytest.raises(BagError, match=r"\['coords'\].*not its coordinates"):
        detect_format(tmp_path / "a.h5")


def test_absent_and_folder(tmp_path):
    with pytest.raises(BagError, match="No such file"):
        detect_format(tmp_path / "a.h5")
    with pytest.raises(BagError, match="directory"):
        detect_format(tmp_path)


def test_raw_keeps_nan(tmp_path):
    np.save(tmp_path / "a.npy", np.full((2, 2), np.nan))
    assert read_raw(tmp_path / "a.npy").features.isnan().all()
    with pytest.raises(BagError, match="2 of 2 instances"):
        read_bag(tmp_path / "a.npy")
