import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from sgpmil.bags import read_bags, read_labels, read_splits
from sgpmil.bags.splits import check_folds
from sgpmil.errors import SettingsError
from sgpmil.experiments.cohorts.cohort import COHORTS
from sgpmil.experiments.cohorts.rehearsal import RehearsalOptions, write_rehearsal
from sgpmil.experiments.cohorts.synthetic import Drawing, SyntheticSource
from sgpmil.slides.annotations.folder import open_annotations
from sgpmil.slides.annotations.patch_labels import patch_labels
from sgpmil.slides.annotations.regions import bracs_rule
from tests.experiments.cohorts.tables_of_labels import write_labels


@pytest.mark.parametrize("cohort", COHORTS)
def test_folds_and_labels_fit_the_bags(rehearsed, cohort):
    found = rehearsed(cohort)
    bags = read_bags(found.features)
    assert len(bags) == found.num_slides
    assert sum(bags.num_instances) == found.num_patches
    assert bags.class_names == COHORTS[cohort].classes
    assert bags.encoders() == ("synthetic",)
    table = read_labels(found.labels)
    assert [bags.target.decode(label) for label in bags.labels] == list(table.labels)
    folds = read_splits(found.splits)
    assert len(folds) == COHORTS[cohort].folds
    check_folds(folds, table)


def test_published_folds_stay_and_the_others_are_made(tmp_path, rehearsed):
    made = rehearsed("camelyon16")
    given = tmp_path / "splits"
    given.mkdir()
    (given / "splits_1.csv").write_text(
        ",train,val,test\n0,tumor_000,tumor_001,test_000\n1,normal_000,normal_001,test_001\n"
    )
    labels = write_labels(tmp_path / "labels.csv", "camelyon16")
    options = RehearsalOptions(
        cohort="camelyon16", labels=labels, splits=given, out=tmp_path / "out", scale=0.01, dim=8
    )
    folds = read_splits(write_rehearsal(options).splits)
    assert folds[1].train == ("tumor_000", "normal_000")
    assert folds[0] == read_splits(made.splits)[0]


def test_the_same_slide_is_drawn_every_time_whatever_others_there_are(rehearsed):
    table = read_labels(rehearsed("bracs").labels)
    whole = SyntheticSource(COHORTS["bracs"], table, Drawing(0.01, 16, device="cpu"))
    few = SyntheticSource(
        COHORTS["bracs"], table.subset(table.slide_ids[5:7]), Drawing(0.01, 16, device="cpu")
    )
    name = table.slide_ids[5]
    assert np.array_equal(whole.read(name).features, few.read(name).features)
    other = SyntheticSource(COHORTS["bracs"], table, Drawing(0.01, 16, seed=1, device="cpu"))
    assert not np.array_equal(whole.read(name).features[:9], other.read(name).features[:9])


def test_slides_have_the_cohorts_median_size():
    table = read_labels_of([f"s{i}" for i in range(800)], "normal")
    source = SyntheticSource(COHORTS["camelyon16"], table, Drawing(device="cpu"))
    sizes = np.array([source.header(slide).num_instances for slide in table.slide_ids])
    assert np.median(sizes) == pytest.approx(2200, rel=0.08)
    assert np.log(sizes).std() == pytest.approx(0.6, rel=0.1)


@pytest.mark.parametrize("cohort", ["camelyon16", "bracs"])
def test_instance_labels_are_those_of_the_drawn_outlines(cohort):
    """Coverage by the package's own geometry gives the labels that the features were made with."""
    config = COHORTS[cohort]
    label = "tumor" if cohort == "camelyon16" else "MT"
    names = [f"x{i}" for i in range(12)]
    source = SyntheticSource(config, read_labels_of(names, label), Drawing(0.3, 8, device="cpu"))
    same = []
    for name in names:
        drawn = source.slide(name)
        ring = [lesion.outline(drawn.side) for lesion in drawn.lesions if lesion.counts]
        # Off the corners that the polygon cuts, coverage says what the middle of the patch says.
        from shapely import MultiPolygon, Polygon, union_all

        from sgpmil.slides.annotations.regions import Annotations, Region

        area = union_all(MultiPolygon([Polygon(corners).buffer(0) for corners in ring]))
        found = patch_labels(
            drawn.cells * drawn.side, drawn.side, Annotations((Region(area, "tumour"),))
        )
        same.append((found == drawn.instance_labels).mean())
        assert drawn.instance_labels.any()
    assert np.mean(same) > 0.97


def test_annotations_are_read_by_the_rules_of_the_cohorts(rehearsed):
    camelyon = open_annotations(rehearsed("camelyon16").annotations)
    assert all(name.startswith(("tumor", "test")) for name in camelyon.files)
    for name in camelyon.files:
        assert camelyon.read(name, "tumor").is_positive
    found = rehearsed("bracs")
    bracs = open_annotations(found.annotations, bracs_rule)
    for row in read_labels(found.labels):
        assert bracs.read(row.slide_id, row.label).is_positive


def test_positive_slides_are_told_by_their_lesions_and_not_by_their_means(tmp_path):
    """An instance classifier that is told the truth separates slides; the mean does not."""
    labels = write_labels(tmp_path / "l.csv", "camelyon16", num_train=80, num_test=40)
    table = read_labels(labels)
    source = SyntheticSource(COHORTS["camelyon16"], table, Drawing(0.05, 256, device="cpu"))
    bags = {s: source.read(s) for s in table.slide_ids}
    train = [s for s in bags if not s.startswith("test")]
    test = [s for s in bags if s.startswith("test")]
    truth = [table.row(s).label == "tumor" for s in test]
    features = np.concatenate([bags[s].features.float().numpy() for s in train])
    positive = np.concatenate([bags[s].instance_labels.numpy() for s in train])
    model = LogisticRegression(C=0.01, max_iter=200).fit(features, positive)
    best = [model.decision_function(bags[s].features.float().numpy()).max() for s in test]
    assert roc_auc_score(truth, best) > 0.95
    means = np.stack([bags[s].features.float().numpy().mean(0) for s in train])
    model = LogisticRegression(max_iter=500).fit(
        means, [table.row(s).label == "tumor" for s in train]
    )
    pooled = [
        model.decision_function(bags[s].features.float().numpy().mean(0, keepdims=True))[0]
        for s in test
    ]
    assert roc_auc_score(truth, pooled) < 0.85


def test_the_layout_is_tridents(rehearsed):
    found = rehearsed("bracs", "trident")
    with h5py.File(found.features / "BRACS_0.h5") as file:
        assert file["features"].dtype == np.float16
        assert file["features"].chunks == (1, 24)
        assert file["coords"].attrs["patch_size_level0"] == 448
    header = read_bags(found.features).source.header("BRACS_0")
    assert (header.patch_size, header.magnification) == (448, 20)
    store = read_bags(rehearsed("bracs").features)
    assert np.array_equal(store[0].features, read_bags(found.features)[0].features)


def test_a_share_keeps_every_class_in_every_part(tmp_path):
    labels = write_labels(tmp_path / "l.csv", "camelyon16", num_train=80, num_test=40)
    options = RehearsalOptions(
        cohort="camelyon16", labels=labels, out=tmp_path / "out", scale=0.01, dim=8, share=0.25
    )
    found = write_rehearsal(options)
    assert found.num_slides == 30
    table = read_labels(found.labels)
    fold = read_splits(found.splits)[0]
    for part in (fold.train, fold.val, fold.test):
        assert {table.row(slide).label for slide in part} == {"normal", "tumor"}
    for wrong in ({"share": 0.0}, {"scale": -1.0}, {"dim": 2}):
        with pytest.raises(SettingsError, match="scale"):
            write_rehearsal(replace(options, **wrong))


def test_geojson_has_the_subtypes_of_bracs(rehearsed):
    names = set()
    for path in rehearsed("bracs").annotations.glob("*.geojson"):
        for feature in json.loads(path.read_text())["features"]:
            names.add(feature["properties"]["classification"]["name"])
    assert names == {"ADH", "PB", "IC"}


def read_labels_of(names, label):
    from sgpmil.bags.labels import LabelTable

    return LabelTable(tuple(names), tuple(names), (label,) * len(names))
