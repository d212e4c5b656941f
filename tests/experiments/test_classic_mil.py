import numpy as np
import pytest

from sgpmil.errors import BagError
from sgpmil.experiments.classic_mil import classic_bags
from tests.experiments.tiny_data import write_classic


def test_ten_stratified_folds_test_every_bag_once(tmp_path):
    write_classic(tmp_path / "musk1.npz")
    bags, folds = classic_bags(tmp_path / "musk1.npz")
    assert len(folds) == 10
    assert sorted(s for fold in folds for s in fold.test) == sorted(bags.slide_ids)
    for fold in folds:
        assert fold.val  # for models that stop early
        for part in (fold.train, fold.val, fold.test):
            assert 0.3 < np.mean(bags.subset(part).labels) < 0.7
    assert classic_bags(tmp_path / "musk1.npz")[1] == folds


def test_missing_file_and_labels_are_named(tmp_path):
    with pytest.raises(BagError, match=r"fox.npz.*no such file"):
        classic_bags(tmp_path / "fox.npz")
    np.savez(tmp_path / "fox.npz", features=np.ones((4, 2), np.float32), offsets=[0, 2, 4])
    with pytest.raises(BagError, match="labels"):
        classic_bags(tmp_path / "fox.npz")
