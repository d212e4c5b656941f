import numpy as np
import pytest
import torch

from sgpmil.bags.readers import detect_format, read_bag
from sgpmil.bags.readers.slideflow import peek
from sgpmil.errors import BagError


@pytest.fixture
def pair(tmp_path, features):
    torch.save(torch.from_numpy(features(3, 2)), tmp_path / "TCGA-1.2.pt")
    np.savez(tmp_path / "TCGA-1.2.index.npz", np.arange(6).reshape(3, 2))
    return tmp_path / "TCGA-1.2.pt"


def test_index_gives_coords(pair, features):
    assert detect_format(pair) == "slideflow"
    bag = read_bag(pair)
    assert bag.coords.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert np.array_equal(bag.features.numpy(), features(3, 2))
    assert peek(pair).has_coords


def test_index_without_its_array(pair):
    np.savez(pair.with_name("TCGA-1.2.index.npz"), other=np.zeros((3, 2)))
    with pytest.raises(BagError, match=r"arr_0.*\['other'\]"):
        read_bag(pair)


def test_index_of_another_length_names_the_index(pair):
    np.savez(pair.with_name("TCGA-1.2.index.npz"), np.zeros((2, 2)))
    with pytest.raises(BagError, match=r"\(3, 2\).*index\.npz"):
        read_bag(pair)
