from pathlib import Path

import numpy as np
import pytest
import torch

from sgpmil.bags.readers import find_bag_files
from sgpmil.errors import BagError


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
