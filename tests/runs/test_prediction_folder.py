from dataclasses import replace

import h5py
import numpy as np
import pytest

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.runs.prediction_folder import (
    is_prediction_folder,
    read_instance_scores,
    read_prediction_folder,
    write_instance_scores,
    write_prediction_folder,
)
from tests.evaluation.tables import random_scores, random_table


def predictions(count=4):
    table = random_table(count, 3)
    scored = [replace(p, instances=random_scores(5)) for p in table.predictions]
    return scored, table.class_names


def test_round_trip(tmp_path):
    made, names = predictions()
    write_prediction_folder(tmp_path, iter(made), ClassTarget(names))
    back = read_prediction_folder(tmp_path)
    assert back.class_names == names
    for old, new in zip(made, back.predictions, strict=True):
        np.testing.assert_array_equal(old.probs, new.probs)
        np.testing.assert_array_equal(old.instances.evidence_mean, new.instances.evidence_mean)


def test_scores_need_not_stay_in_memory(tmp_path):
    made, names = predictions()
    table = write_prediction_folder(tmp_path, made, ClassTarget(names), keep_instances=False)
    assert all(p.instances is None for p in table.predictions)
    assert all(p.instances is not None for p in read_prediction_folder(tmp_path).predictions)


def test_a_failure_leaves_no_complete_folder(tmp_path, monkeypatch):
    made, names = predictions()
    write_prediction_folder(tmp_path, made, ClassTarget(names))

    def broken():
        yield made[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_prediction_folder(tmp_path, broken(), ClassTarget(names))
    assert not is_prediction_folder(tmp_path)


def test_old_scores_go(tmp_path):
    made, names = predictions(4)
    write_prediction_folder(tmp_path, made, ClassTarget(names))
    write_prediction_folder(tmp_path, made[:2], ClassTarget(names))
    assert len(list((tmp_path / "attention").iterdir())) == 2


# The scores of one slide's instances


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"evidence_mean": None, "evidence_std": None},
        {"margin_std": np.random.default_rng(0).random((30, 3))},
        {name: np.random.default_rng(1).random((30, 3)) for name in ("single_mean", "single_std")},
        {
            **{f"single_{name}": np.full((30, 3), 0.4) for name in ("mean", "std", "prob")},
            "novelty": np.linspace(0, 2, 30, dtype=np.float32),
        },
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
    for name in set(InstanceScores.__dataclass_fields__) - {"patch_size"}:
        old, new = getattr(scores, name), getattr(back, name)
        assert (old is None) == (new is None)
        if old is not None:
            np.testing.assert_array_equal(old, new)
            assert old.dtype == new.dtype
    assert [file.name for file in path.parent.iterdir()] == ["a.h5"]


def test_a_file_of_an_earlier_version_opens_and_says_what_it_lacks(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["attention_mean"] = np.arange(3.0)
        file["attention_std"] = np.zeros(3)
    back = read_instance_scores(path)
    np.testing.assert_array_equal(back.score("attention", 1), [0, 1, 2])
    with pytest.raises(PredictionError, match=r"score 'single'.*Predict the slides again"):
        back.score("single", 1)


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
    with pytest.raises(PredictionError, match="'attention_std'"):
        read_instance_scores(path)
    with h5py.File(path, "w") as file:
        file["attention_mean"] = np.ones(3)
        file["attention_std"] = np.ones(4)
    with pytest.raises(PredictionError, match=r"shape \(3,\).*got \(4,\)"):
        read_instance_scores(path)
