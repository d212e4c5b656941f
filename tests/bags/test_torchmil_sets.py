import numpy as np
import pandas as pd
import pytest
import torch
from torchmil.data import collate_fn
from torchmil.datasets import CAMELYON16MILDataset, ProcessedMILDataset, ToyDataset

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.reading import read_bags
from sgpmil.bags.split_files import read_splits
from sgpmil.bags.splits import Fold
from sgpmil.errors import BagError, LabelError

from .test_anndata_bags import same

# torchmil makes sparse matrices without saying whether torch is to check them.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")


@pytest.fixture
def bags(features):
    sizes = {"s1": 4, "s2": 1, "s3": 3, "s4.x": 2}
    steps = np.array([[0, 0], [0, 512], [512, 0], [512, 512]])
    return BagDataset.from_arrays(
        {name: features(n, 5, n) for name, n in sizes.items()},
        pd.DataFrame({"label": ["tumor", "normal"] * 2, "case_id": list("pqpr")}, list(sizes)),
        coords={name: steps[:n] for name, n in sizes.items()},
        instance_labels={
            name: np.arange(n) % 2 * (name != "s2" and name != "s4.x") for name, n in sizes.items()
        },
        patch_size=512,
    )


def test_torchmil_reads_what_is_written(bags, tmp_path):
    made = bags.to_torchmil(tmp_path / "set")
    assert isinstance(made, ProcessedMILDataset)
    assert made.get_bag_names() == list(bags.slide_ids)
    for bag, theirs in zip(bags, made, strict=False):
        torch.testing.assert_close(theirs["X"], bag.features)
        assert theirs["Y"].item() == bag.label
        assert theirs["y_inst"].tolist() == bag.instance_labels.tolist()
        assert theirs["coords"].tolist() == bag.coords.tolist()
    # Four patches in a square are all neighbours; with themselves, as torchmil makes it.
    assert (made[0]["adj"].to_dense() > 0).sum() >= 12
    batch = collate_fn([made[0], made[2]])
    assert batch["X"].shape == (2, 4, 5)
    assert batch["Y"].tolist() == [1, 1]


def test_round_trips(bags, tmp_path):
    made = bags.to_torchmil(tmp_path / "set")
    back = BagDataset.from_torchmil(made, class_names=bags.class_names)
    assert back.slide_ids == bags.slide_ids
    assert (back.labels, back.class_names) == (bags.labels, bags.class_names)
    for one, other in zip(back, bags, strict=True):
        torch.testing.assert_close(one.features, other.features)
        assert one.coords.tolist() == other.coords.tolist()
        assert one.instance_labels.tolist() == other.instance_labels.tolist()
    same(read_bags(tmp_path / "set", tmp_path / "set" / "labels.csv"), bags)
    numbered = read_bags(tmp_path / "set", tmp_path / "set" / "patches_512" / "labels")
    assert (numbered.labels, numbered.class_names) == (bags.labels, ("0", "1"))


def test_their_class_of_slides_reads_the_folder(bags, tmp_path):
    fold = Fold("0", train=("s1", "s2"), val=("s3",), test=("s4.x",))
    bags.to_torchmil(tmp_path, name="UNI", fold=fold)
    theirs = CAMELYON16MILDataset(str(tmp_path), "UNI", "train", load_at_init=False)
    assert theirs.get_bag_names() == ["s1", "s2"]
    assert theirs[0]["coords"].tolist() == (bags[0].coords // 512).tolist()
    found = BagDataset.from_torchmil(theirs)
    assert found.slide_ids == ("s1", "s2")
    assert (found[0].coords.tolist(), found[0].patch_size) == (bags[0].coords.tolist(), 512)
    assert found.labels == (1, 0)
    (read,) = read_splits(tmp_path / "splits.csv")
    assert (read.train, read.val, read.test) == (fold.train, fold.val, fold.test)


def test_a_data_set_without_names_and_coordinates():
    data = np.random.default_rng(0).normal(size=(40, 3))
    toy = ToyDataset(data, np.arange(40) % 4, 6, obj_labels=[1], bag_size=4)
    bags = BagDataset.from_torchmil(toy)
    assert (len(bags), bags.feature_dim) == (6, 3)
    for number, bag in enumerate(bags):
        torch.testing.assert_close(bag.features, toy[number]["X"].float())
        assert bags.class_names[bag.label] == str(int(toy[number]["Y"]))
        assert bag.coords is None


def test_only_what_every_bag_has_is_written(features, tmp_path):
    some = BagDataset.from_arrays(
        {"a": features(2), "b": features(1)}, coords={"a": np.zeros((2, 2))}
    )
    made = some.to_torchmil(tmp_path / "set")
    assert made.bag_keys == ["X"]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["patches_0"]
    assert BagDataset.from_torchmil(made).labels == (None, None)
    with pytest.raises(BagError, match="there is something in it"):
        some.to_torchmil(tmp_path / "set")
    some.subset(["b"]).to_torchmil(tmp_path / "set", overwrite=True)
    assert [path.name for path in (tmp_path / "set").rglob("*.npy")] == ["b.npy"]


def test_unusable_sets(bags, features, tmp_path):
    made = bags.to_torchmil(tmp_path / "set")
    made.bag_keys = ["Y"]
    with pytest.raises(BagError, match="features 'X', but got 'Y'"):
        BagDataset.from_torchmil(made)
    with pytest.raises(BagError, match="but got no bags"):
        BagDataset.from_torchmil([])
    with pytest.raises(LabelError, match=r"label 'Y' of a bag, but got shape \(2,\)"):
        BagDataset.from_torchmil([{"X": torch.ones(1, 2), "Y": torch.ones(2)}])
    mixed = BagDataset.from_arrays(
        {"a": features(2), "b": features(1)}, patch_size={"a": 256, "b": 512}
    )
    with pytest.raises(BagError, match=r"one patch size, .* \[256, 512\]"):
        mixed.to_torchmil(tmp_path / "mixed")
    labels = tmp_path / "set" / "patches_512" / "labels"
    np.save(labels / "s1.npy", np.ones(3))
    with pytest.raises(LabelError, match=r"one number .* shape \(3,\) .*s1.npy"):
        read_bags(tmp_path / "set", labels)
