import os

import numpy as np
import pytest
import torch

from sgpmil.bags.bag import Bag
from sgpmil.bags.readers.formats import find_bag_files
from sgpmil.bags.sources import BagSource, FolderSource, MemorySource
from sgpmil.errors import BagError


@pytest.fixture
def folder(tmp_path, features, write_trident):
    write_trident(tmp_path / "a.h5", features(3, 2))
    np.save(tmp_path / "b.npy", features(4, 2))
    return tmp_path


def test_folder_source(folder, features):
    source = FolderSource(find_bag_files(folder))
    assert isinstance(source, BagSource)
    assert source.slide_ids == ("a", "b")
    assert np.array_equal(source.read("b").features.numpy(), features(4, 2))
    assert source.header("a").encoder == "uni_v1"


def test_stamp_changes_with_the_file(folder):
    source = FolderSource(find_bag_files(folder))
    before = source.stamp("a")
    os.utime(folder / "a.h5", ns=(1, 1))
    assert source.stamp("a") == before
    with (folder / "a.h5").open("ab") as file:
        file.write(b"more")
    assert source.stamp("a") != before
    (folder / "a.h5").unlink()
    with pytest.raises(BagError, match=r"a\.h5"):
        source.stamp("a")


def test_unknown_slides(folder):
    for source in (
        FolderSource(find_bag_files(folder)),
        MemorySource([Bag(torch.ones(1, 1), "a")]),
    ):
        with pytest.raises(BagError, match="'x', which is not among them"):
            source.read("x")


def test_memory_source():
    bag = Bag(torch.ones(3, 2), "a", coords=torch.zeros(3, 2, dtype=torch.long))
    source = MemorySource([bag])
    assert isinstance(source, BagSource)
    assert source.read("a") is bag
    header = source.header("a")
    assert (header.num_instances, header.feature_dim, header.has_coords) == (3, 2, True)


def test_memory_stamp_follows_content():
    def stamp(features, coords=None):
        return MemorySource([Bag(features, "a", coords=coords)]).stamp("a")

    assert stamp(torch.ones(3, 2)) == stamp(torch.ones(3, 2))
    assert stamp(torch.ones(3, 2)) != stamp(torch.zeros(3, 2))
    assert stamp(torch.ones(3, 2)) != stamp(torch.ones(3, 2), torch.ones(3, 2, dtype=torch.long))
    assert MemorySource([Bag(torch.ones(1, 1), "a")], ["known"]).stamp("a") == "known"
