import h5py
import numpy as np
import pytest

from sgpmil.errors import PredictionError
from sgpmil.runs.instance_files import read_instance_scores, write_instance_scores
from tests.evaluation.tables import random_scores


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"evidence_mean": None, "evidence_std": None},
        {"margin_std": np.random.default_rng(0).random((30, 3))},
        {"coords": None, "patch_size": None},
        {"instance_labels": None, "patch_size": None},
    ],
)
def test_instance_scores_round_trip(tmp_path, changes):
    scores = random_scores(num_classes=3, **changes)
    path = tmp_path / "attention" / "a.h5"
    write_instance_scores(path, scores)
    back = read_instance_scores(path)
    assert back.patch_size == scores.patch_size
    names = (
        *("attention_mean", "attention_std", "evidence_mean", "evidence_std", "margin_std"),
        "coords",
    )
    for name in (*names, "instance_labels"):
        old, new = getattr(scores, name), getattr(back, name)
        assert (old is None) == (new is None)
        if old is not None:
            np.testing.assert_array_equal(old, new)
            assert old.dtype == new.dtype
    assert [file.name for file in path.parent.iterdir()] == ["a.h5"]


def test_instance_scores_file_as_h5py_sees_it(tmp_path):
    path = tmp_path / "a.h5"
    write_instance_scores(path, random_scores(coords=np.ones((30, 2), dtype=np.int32)))
    with h5py.File(path) as file:
        assert file["coords"].dtype == np.int64
        assert file["coords"].attrs["patch_size_level0"] == 256
        assert file["attention_mean"].shape == (30,)


@pytest.mark.usefixtures("unchecked_shapes")
def test_unusable_instance_scores(tmp_path):
    path = tmp_path / "a.h5"
    with pytest.raises(PredictionError, match="there is none"):
        read_instance_scores(path)
    path.write_bytes(b"not HDF5")
    with pytest.raises(PredictionError, match="cannot be read"):
        read_instance_scores(path)
    with h5py.File(path, "w") as file:
        file["attention_mean"] = np.ones(3)
    with pytest.raises(PredictionError, match="'attention_std'"):
        read_instance_scores(path)
    with h5py.File(path, "w") as file:
        file["attention_mean"] = np.ones(3)
        file.create_group("attention_std")
    with pytest.raises(PredictionError, match="cannot be read"):
        read_instance_scores(path)
    with h5py.File(path, "w") as file:
        file["attention_mean"] = np.ones(3)
        file["attention_std"] = np.ones(4)
    with pytest.raises(PredictionError, match=r"shape \(3,\).*got \(4,\)"):
        read_instance_scores(path)
