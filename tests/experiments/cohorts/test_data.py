import numpy as np
import pytest

from sgpmil.bags import PackedStore, read_bags
from sgpmil.bags.store import is_store
from sgpmil.errors import LabelError, SplitError
from sgpmil.experiments.cohorts.cohort import COHORTS
from sgpmil.experiments.cohorts.data import cohort_folds, read_cohort, read_cohort_labels
from tests.experiments.cohorts.tables_of_labels import write_labels


@pytest.mark.parametrize("cohort", COHORTS)
def test_bags_have_the_cohorts_classes_and_order(options_of, cohort):
    options = options_of(cohort)
    found = read_cohort(COHORTS[cohort], options, splits=options.splits)
    assert found.bags.class_names == COHORTS[cohort].classes
    assert found.bags.target.kind == ("ordinal" if cohort == "panda" else "class")
    assert len(found.folds) == COHORTS[cohort].folds
    # Other commands read the same bags by what a run remembers.
    again = read_bags(**found.reading)
    assert again.fingerprint() == found.bags.fingerprint()


def test_files_are_packed_once_and_read_from_the_store(options_of, tmp_path):
    options = options_of("bracs", "trident")
    store = tmp_path / "store"
    found = read_cohort(COHORTS["bracs"], options, splits=options.splits, store=store)
    assert isinstance(found.bags.source, PackedStore)
    before = (store / "features.npy").stat().st_mtime_ns
    read_cohort(COHORTS["bracs"], options, splits=options.splits, store=store)
    assert (store / "features.npy").stat().st_mtime_ns == before
    assert found.reading["folder"] == str(store)
    bag = read_bags(options.features)[3]
    assert np.array_equal(found.bags[found.bags.index(bag.slide_id)].features, bag.features)


def test_a_store_is_not_packed_again(options_of, tmp_path):
    options = options_of("bracs")
    found = read_cohort(COHORTS["bracs"], options, splits=options.splits, store=tmp_path / "store")
    assert not is_store(tmp_path / "store")
    assert found.reading["folder"] == str(options.features)


def test_labels_of_other_classes_are_refused(options_of, tmp_path):
    labels = write_labels(tmp_path / "labels.csv", "bracs")
    with pytest.raises(LabelError, match=r"classes normal, tumor of CAMELYON16.*'AT', 'BT', 'MT'"):
        read_cohort_labels(COHORTS["camelyon16"], options_of("camelyon16", labels=labels))
    with pytest.raises(LabelError, match="`labels`"):
        read_cohort_labels(COHORTS["camelyon16"], options_of("camelyon16", labels=None))


def test_the_column_of_labels_can_be_another(options_of, tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("slide_id,label,truth\nnormal_001,a,normal\ntumor_001,b,tumor\n")
    options = options_of("camelyon16", labels=path, label_column="truth")
    assert read_cohort_labels(COHORTS["camelyon16"], options).labels == ("normal", "tumor")


def test_without_splits_the_official_test_slides_of_camelyon16_are_tested(options_of, tmp_path):
    labels = write_labels(tmp_path / "l.csv", "camelyon16", num_train=50, num_test=10)
    cohort = COHORTS["camelyon16"]
    table = read_cohort_labels(cohort, options_of("camelyon16", labels=labels))
    folds = cohort_folds(cohort, table, None, labels)
    assert len(folds) == 10
    assert len({fold.val for fold in folds}) == 10
    for fold in folds:
        assert set(fold.test) == {slide for slide in table.slide_ids if slide.startswith("test")}
        assert not set(fold.train) & set(fold.val)
        assert len(fold.train) == 40
        for part in (fold.train, fold.val):
            tumours = sum(slide.startswith("tumor") for slide in part)
            assert tumours == len(part) // 2


def test_without_splits_the_column_of_bracs_names_the_parts(options_of, tmp_path):
    labels = write_labels(tmp_path / "l.csv", "bracs")
    cohort = COHORTS["bracs"]
    table = read_cohort_labels(cohort, options_of("bracs", labels=labels))
    (fold,) = cohort_folds(cohort, table, None, labels)
    assert fold.test == ("BRACS_15", "BRACS_16", "BRACS_17")
    assert (len(fold.train), len(fold.val)) == (18, 3)
    bare = tmp_path / "bare.csv"
    bare.write_text("slide_id,label\nBRACS_0,AT\n")
    with pytest.raises(SplitError, match=r"'Set'.*`splits`"):
        cohort_folds(cohort, table, None, bare)


def test_without_splits_patients_of_tcga_stay_together(options_of, tmp_path):
    labels = write_labels(tmp_path / "l.csv", "tcga-nsclc")
    cohort = COHORTS["tcga-nsclc"]
    table = read_cohort_labels(cohort, options_of("tcga-nsclc", labels=labels))
    folds = cohort_folds(cohort, table, None, labels)
    assert len(folds) == 4
    for fold in folds:
        parts = (fold.train, fold.val, fold.test)
        cases = [{table.row(slide).case_id for slide in part} for part in parts]
        assert sum(map(len, cases)) == len(set.union(*cases))


def test_of_more_split_files_than_the_paper_uses_the_first_are_taken(tmp_path, options_of):
    folder = tmp_path / "splits"
    folder.mkdir()
    for k in range(7):
        (folder / f"splits_{k}.csv").write_text(f",train,val,test\n0,a{k},b,c\n")
    table = read_cohort_labels(COHORTS["panda"], options_of("panda"))
    folds = cohort_folds(COHORTS["panda"], table, folder, None)
    assert [fold.name for fold in folds] == ["0", "1", "2", "3", "4"]
