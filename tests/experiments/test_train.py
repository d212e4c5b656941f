import numpy as np
import pytest

from sgpmil.bags import BagDataset, pack_bags, read_bags
from sgpmil.bags.splits import Fold
from sgpmil.errors import SettingsError, TrainingError
from sgpmil.experiments.recipe import load_recipe
from sgpmil.experiments.train import read_data, run_recipe
from sgpmil.runs import Run


def test_folds_without_validation_slides_are_trained_all_the_same(tmp_path, rng):
    bags = BagDataset.from_arrays(
        [rng.normal(size=(3, 2)) + 3 * (i % 2) for i in range(8)],
        [i % 2 for i in range(8)],
        slide_ids=[f"s{i}" for i in range(8)],
    )
    fold = Fold("0", train=bags.slide_ids[:6], val=(), test=bags.slide_ids[6:])
    values = {
        "data.features": "f",
        "model.name": "dsmil",  # stops early of its own
        "training.epochs": 1,
    }
    made = run_recipe(load_recipe(values=values), bags, [fold], tmp_path / "run", progress=False)
    assert made.predictions[0].slide_ids == ("s6", "s7")
    asked = load_recipe(values=values | {"training.patience": 2})
    with pytest.raises(TrainingError, match="validation slides"):
        run_recipe(asked, bags, [fold], tmp_path / "asked", progress=False)


def test_folds_are_made_where_none_are_given(tmp_path, rng):
    features = [rng.normal(size=(3, 2)) for _ in range(12)]
    bags = BagDataset.from_arrays(features, [i % 2 for i in range(12)])
    pack_bags(bags, tmp_path / "store")
    values = {"data.features": tmp_path / "store", "data.folds": 3}
    read, folds = read_data(load_recipe(values=values).data)
    assert len(folds) == 3
    assert sorted(s for fold in folds for s in fold.test) == sorted(read.slide_ids)


def test_bags_without_labels_ask_for_them(tmp_path, rng):
    pack_bags(BagDataset.from_arrays([rng.normal(size=(3, 2))] * 4), tmp_path / "store")
    with pytest.raises(SettingsError, match="`labels`"):
        read_data(load_recipe(values={"data.features": tmp_path / "store"}).data)


def test_a_run_records_how_its_bags_are_read_again(tmp_path, rng, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "features").mkdir()
    lines = ["name,diagnosis"]
    for i in range(8):
        np.save(f"features/s{i}.npy", rng.normal(size=(3, 2)).astype(np.float32))
        lines.append(f"s{i},{'b' if i % 2 else 'a'}")
    (tmp_path / "labels.csv").write_text("\n".join([*lines, "gone,a"]))
    values = {
        "data.features": "features",
        "data.labels": "labels.csv",
        "data.slide_column": "name",
        "data.label_column": "diagnosis",
        "data.classes": ["b", "a"],
        "data.skip_missing": True,
        "data.folds": 2,
        "model.name": "abmil",
        "training.epochs": 1,
    }
    recipe = load_recipe(values=values)
    with pytest.warns(UserWarning, match="gone"):
        bags, folds = read_data(recipe.data)
    run_recipe(recipe, bags, folds, tmp_path / "run", progress=False, only_folds=["0"])
    before = bags.fingerprint()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="gone"):
        again = read_bags(**Run.open(tmp_path / "run").data)
    assert again.class_names == ("b", "a")
    assert again.fingerprint() == before
