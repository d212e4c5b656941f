import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.bags.array_writer import ArrayWriter


@given(st.lists(st.integers(0, 200), max_size=12), st.sampled_from(["float16", "int64"]))
def test_grows_as_one_array(tmp_path_factory, sizes, dtype):
    path = tmp_path_factory.mktemp("array") / "a.npy"
    blocks = [np.full((size, 3), i) for i, size in enumerate(sizes)]
    with ArrayWriter(path, (3,), dtype) as writer:
        for block in blocks:
            writer.append(block)
    found = np.load(path)
    assert found.dtype == np.dtype(dtype)
    assert np.array_equal(found, np.concatenate([np.zeros((0, 3)), *blocks]))


def test_vectors_can_be_mapped(tmp_path):
    with ArrayWriter(tmp_path / "a.npy", (), "int64") as writer:
        writer.append(np.arange(5))
    assert np.load(tmp_path / "a.npy", mmap_mode="r").tolist() == [0, 1, 2, 3, 4]


def test_wrong_rows(tmp_path):
    with (
        pytest.raises(ValueError, match=r"\(2,\) instead of \(3,\)"),
        ArrayWriter(tmp_path / "a.npy", (3,), "float32") as writer,
    ):
        writer.append(np.zeros((1, 2)))
