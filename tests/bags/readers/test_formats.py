import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from sgpmil.bags.readers.formats import detect_format, find_bag_files, peek_bag, read_raw
from sgpmil.errors import BagError

from .bag_file import read_bag


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


def _slides(folder):
    return [file.slide_id for file in find_bag_files(folder)]


def test_trident_at_each_depth(tmp_path, features, write_trident):
    setting = tmp_path / "job" / "20x_256px_0px_overlap"
    folder = setting / "features_uni_v1"
    write_trident(folder / "TCGA-1.B.h5", features())
    write_trident(folder / "TCGA-1.A.h5", features())
    write_trident(setting / "patches" / "TCGA-1.A_patches.h5", features())
    write_trident(setting / "slide_features_titan" / "TCGA-1.A.h5", features())
    (tmp_path / "job" / "thumbnails").mkdir()
    for start in (tmp_path / "job", setting, folder):
        assert _slides(start) == ["TCGA-1.A", "TCGA-1.B"]
    assert {file.format for file in find_bag_files(folder)} == {"trident"}


def test_several_encoders_are_ambiguous(tmp_path, features, write_trident):
    setting = tmp_path / "20x_256px_0px_overlap"
    write_trident(setting / "features_uni_v1" / "a.h5", features())
    write_trident(setting / "features_conch_v15" / "a.h5", features())
    (setting / "features_empty").mkdir()
    for start in (tmp_path, setting):
        with pytest.raises(BagError, match=r"found 2: .*features_conch_v15, .*features_uni_v1"):
            find_bag_files(start)


def test_clam_prefers_h5_and_fills_up_with_pt(tmp_path, features, write_trident):
    write_trident(tmp_path / "h5_files" / "a.h5", features())
    (tmp_path / "pt_files").mkdir()
    for name in ("a", "b"):
        torch.save(torch.ones(2, 4), tmp_path / "pt_files" / f"{name}.pt")
    found = find_bag_files(tmp_path)
    assert [file.path.name for file in found] == ["a.h5", "b.pt"]


def test_torchmil_set(tmp_path, features):
    folder = tmp_path / "patches_512" / "features" / "features_uni"
    folder.mkdir(parents=True)
    (tmp_path / "patches_512" / "coords").mkdir()
    np.save(folder / "w.npy", features())
    np.save(tmp_path / "patches_512" / "coords" / "w.npy", np.zeros((5, 2)))
    assert [file.path for file in find_bag_files(tmp_path)] == [folder / "w.npy"]


def test_flat_folder_ignores_what_is_no_bag(tmp_path, features, write_trident):
    write_trident(tmp_path / "a.h5", features())
    write_trident(tmp_path / "a_patches.h5", features())
    write_trident(tmp_path / ".b.h5", features())
    write_trident(tmp_path / "c.tmp.h5", features())
    torch.save(torch.ones(2, 2), tmp_path / "d.pt")
    np.savez(tmp_path / "d.index.npz", np.zeros((2, 2)))
    for name in ("a.h5.lock", "e.h5.tmp", "labels.csv", "bags_config.json"):
        (tmp_path / name).write_text("x")
    assert _slides(tmp_path) == ["a", "d"]


def test_damaged_file_is_found_without_format(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"damaged")
    assert find_bag_files(tmp_path)[0].format is None


def test_one_file(tmp_path, features, write_trident):
    path = write_trident(tmp_path / "x.y.h5", features())
    assert _slides(path) == ["x.y"]


def test_nothing_lists_what_is_there(tmp_path):
    with pytest.raises(BagError, match="an empty folder"):
        find_bag_files(tmp_path)
    for i in range(7):
        (tmp_path / f"{i}.svs").write_text("x")
    with pytest.raises(BagError, match=r"found 0\.svs.* and 2 more"):
        find_bag_files(tmp_path)
    with pytest.raises(BagError, match="there is none"):
        find_bag_files(tmp_path / "absent")


def test_unreadable_folder(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(BagError, match="Permission denied"):
        find_bag_files(tmp_path)
