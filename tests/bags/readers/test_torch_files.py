import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from sgpmil.bags.readers.formats import detect_format
from sgpmil.bags.readers.torch_files import ClamTensors, Slideflow, load_array
from sgpmil.errors import BagError, EmptyBagError

from .bag_file import read_bag


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
def test_numpy_array_saved_by_torch(tmp_path, features, dtype, mapped, archive):
    stored = features(3, 2, dtype=dtype)
    torch.save(stored, tmp_path / "a.pt", _use_new_zipfile_serialization=archive)
    found = load_array(tmp_path / "a.pt", mapped=mapped)
    assert isinstance(found, np.ndarray)
    assert found.dtype == stored.dtype
    assert np.array_equal(found, stored)


def test_numpy_one_names_are_known(tmp_path, features):
    torch.save(features(3, 2), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "a.pt").read_bytes()
    # numpy 1 wrote the module's old name.
    old = content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    assert old != content
    (tmp_path / "a.pt").write_bytes(old)
    assert np.array_equal(load_array(tmp_path / "a.pt"), features(3, 2))


@pytest.mark.parametrize("archive", [True, False])
def test_pickle_bomb_is_refused_and_not_run(tmp_path, archive):
    mark, path = tmp_path / "exploded", tmp_path / "a.pt"
    torch.save([Bomb(mark)], path, _use_new_zipfile_serialization=archive)
    with pytest.raises(BagError, match=r"not loaded .*a\.pt"):
        load_array(path)
    assert not mark.exists()
    # The bomb is a real one: plain unpickling would have set it off.
    pickle.loads(pickle.dumps(Bomb(mark)))  # noqa: S301
    assert mark.exists()


def test_plain_pickle_bomb_is_refused(tmp_path):
    mark, path = tmp_path / "exploded", tmp_path / "a.pt"
    path.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(BagError, match=r"a\.pt"):
        load_array(path)
    assert not mark.exists()


def test_object_array_is_refused(tmp_path):
    mark = tmp_path / "exploded"
    torch.save(np.array([Bomb(mark)], dtype=object), tmp_path / "a.pt")
    with pytest.raises(BagError, match=r"a\.pt"):
        load_array(tmp_path / "a.pt")
    assert not mark.exists()


def test_other_content_is_named(tmp_path):
    torch.save({"features": torch.ones(2, 2)}, tmp_path / "a.pt")
    with pytest.raises(BagError, match="but got dict"):
        load_array(tmp_path / "a.pt")


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.95])
def test_truncated(tmp_path, features, archive, mapped, share):
    path = tmp_path / "a.pt"
    tensor = torch.from_numpy(features(100, 30))
    torch.save(tensor, path, _use_new_zipfile_serialization=archive)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BagError, match=r"a\.pt"):
        load_array(path, mapped=mapped)


@pytest.mark.parametrize("content", [b"\x80\x02}q\x00", b"not a tensor at all", b"\x80\x05."])
def test_other_bytes(tmp_path, content):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(BagError, match=r"a\.pt"):
        load_array(tmp_path / "a.pt")


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
    assert Slideflow.peek(pair).has_coords


def test_index_without_its_array(pair):
    np.savez(pair.with_name("TCGA-1.2.index.npz"), other=np.zeros((3, 2)))
    with pytest.raises(BagError, match=r"arr_0.*\['other'\]"):
        read_bag(pair)


def test_index_of_another_length_names_the_index(pair):
    np.savez(pair.with_name("TCGA-1.2.index.npz"), np.zeros((2, 2)))
    with pytest.raises(BagError, match=r"\(3, 2\).*index\.npz"):
        read_bag(pair)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensor(tmp_path, features, dtype):
    path = tmp_path / "TCGA-1.2.pt"
    torch.save(torch.from_numpy(features(6, 3)).to(dtype), path)
    assert detect_format(path) == "clam-pt"
    bag = read_bag(path)
    assert bag.slide_id == "TCGA-1.2"
    assert np.array_equal(bag.features.numpy(), features(6, 3))
    assert bag.coords is None
    header = ClamTensors.peek(path)
    assert (header.num_instances, header.feature_dim) == (6, 3)
    assert header.dtype == str(dtype).removeprefix("torch.")


def test_parameter_that_requires_grad(tmp_path):
    torch.save(torch.nn.Parameter(torch.ones(2, 2)), tmp_path / "a.pt")
    assert not ClamTensors.read(tmp_path / "a.pt").features.requires_grad


def test_empty_tensor(tmp_path):
    torch.save(torch.zeros(0, 3), tmp_path / "a.pt")
    with pytest.raises(EmptyBagError):
        read_bag(tmp_path / "a.pt")


def test_vector_is_refused(tmp_path):
    torch.save(torch.zeros(3), tmp_path / "a.pt")
    with pytest.raises(BagError, match="slide embedding"):
        ClamTensors.read(tmp_path / "a.pt")
