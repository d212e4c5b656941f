import sys

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import BagError, LabelError, MissingPartError

anndata.settings.zarr_write_format = 2


@pytest.fixture
def bags(features, rng):
    sizes = {"s1": 4, "s2": 1, "s3": 3}
    return BagDataset.from_arrays(
        {name: features(n, 5, n) for name, n in sizes.items()},
        pd.DataFrame(
            {"label": ["tumor", "normal", "tumor"], "case_id": ["p", "q", "p"]}, list(sizes)
        ),
        coords={name: rng.integers(0, 99, (n, 2)) * 224 for name, n in sizes.items()},
        instance_labels={name: rng.integers(-1, 2, n) for name, n in sizes.items()},
        patch_size=224,
    )


def same(one, other):
    assert (one.slide_ids, one.case_ids) == (other.slide_ids, other.case_ids)
    assert (one.labels, one.class_names) == (other.labels, other.class_names)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left.features, right.features)
        for name in ("coords", "instance_labels"):
            assert (getattr(left, name) is None) == (getattr(right, name) is None)
            if getattr(left, name) is not None:
                np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
        assert left.patch_size == right.patch_size


@pytest.mark.filterwarnings("ignore")  # anndata's own
def test_round_trip_through_a_file(bags, tmp_path):
    made = bags.to_anndata()
    assert made.shape == (8, 5)
    assert made.obs["slide_id"].tolist() == ["s1"] * 4 + ["s2"] + ["s3"] * 3
    assert made.obs["label"].tolist() == ["tumor"] * 4 + ["normal"] + ["tumor"] * 3
    assert made.obs_names[4] == "s2-0"
    np.testing.assert_array_equal(made.obsm["spatial"][5:], bags[2].coords)
    same(BagDataset.from_anndata(made), bags)
    made.write_h5ad(tmp_path / "a.h5ad")
    same(BagDataset.from_anndata(anndata.read_h5ad(tmp_path / "a.h5ad")), bags)
    per_slide = {name: bags.subset([name]).to_anndata() for name in bags.slide_ids}
    same(BagDataset.from_anndata(per_slide), bags)
    # AnnData's own concatenation, with the rows of slides mixed.
    joined = anndata.concat(per_slide, label="slide_name")
    del joined.obs["slide_id"]
    mixed = joined[[7, 0, 4, 1, 5, 2, 3, 6]]
    found = BagDataset.from_anndata(mixed)
    assert found.slide_ids == ("s3", "s1", "s2")
    np.testing.assert_array_equal(found[1].features, bags[0].features)
    np.testing.assert_array_equal(found[0].coords, bags[2].coords[[2, 0, 1]])


def test_what_is_not_there_is_left_out(features):
    plain = BagDataset.from_arrays({"a": features(2), "b": features(1)})
    made = plain.to_anndata()
    assert (list(made.obs), list(made.obsm)) == (["slide_id", "case_id"], [])
    same(BagDataset.from_anndata(made), plain)
    labelled = BagDataset.from_anndata(made, {"a": "x", "b": "y"}, classes=["y", "x"])
    assert labelled.labels == (1, 0)


def test_obsm_sparse_and_named_columns(bags):
    made = bags.to_anndata()
    made.obsm["uni"] = pd.DataFrame(made.X[:, :2], made.obs_names)
    made.X = sp.csr_matrix(made.X)
    made.obs = made.obs.rename(columns={"slide_id": "nr", "label": "grade", "case_id": "who"})
    columns = {"slide_column": "nr", "label_column": "grade", "case_column": "who"}
    same(BagDataset.from_anndata(made, **columns), bags)
    found = BagDataset.from_anndata(made, features="uni", **columns)
    np.testing.assert_array_equal(found[2].features, bags[2].features[:, :2])


def test_tiles_of_lazyslide(features):
    # What its `wsi.fetch.features_anndata` returns, in the parts that matter.
    slide = anndata.AnnData(
        features(3),
        obs=pd.DataFrame({"tile_id": [0, 1, 2], "tissue_id": 0}, ["0", "1", "2"]),
        obsm={"spatial": np.array([[563.0, 2369.0], [563.0, 2625.0], [819.0, 833.0]])},
        uns={"tile_spec": {"width": 256, "base_downsample": 2.0}},
    )
    bags = BagDataset.from_anndata({"cmu-1.svs": slide}, {"cmu-1": 1})
    assert bags.slide_ids == ("cmu-1",)
    assert bags[0].patch_size == 512
    assert bags[0].coords.tolist() == [[563, 2369], [563, 2625], [819, 833]]


def test_unusable_anndata(bags):
    made = bags.to_anndata()
    with pytest.raises(BagError, match=r"obsm\['uni'\], but obsm has 'spatial'"):
        BagDataset.from_anndata(made, features="uni")
    with pytest.raises(LabelError, match="column 'nr'"):
        BagDataset.from_anndata(made, slide_column="nr")
    one = bags.subset(["s2"]).to_anndata()
    one.obs = one.obs[["case_id"]]
    with pytest.raises(LabelError, match="such as 'slide_id' in obs, but got the columns case_id"):
        BagDataset.from_anndata(one)
    with pytest.raises(BagError, match="but got a list"):
        BagDataset.from_anndata([made])
    made.obs["label"] = ["tumor", "normal"] * 4
    with pytest.raises(LabelError, match=r"one label a slide .* 's1' has 'normal', 'tumor'"):
        BagDataset.from_anndata(made)
    made.obs["slide_id"] = [None, *["x"] * 7]
    with pytest.raises(LabelError, match="row 0 has none"):
        BagDataset.from_anndata(made)
    empty = anndata.AnnData(obs=pd.DataFrame({"slide_id": ["a"]}, ["0"]))
    with pytest.raises(BagError, match="of 'a' in X, but there are none"):
        BagDataset.from_anndata(empty)


def test_without_anndata(bags, monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(MissingPartError, match=r"\[anndata\]"):
        bags.to_anndata()
