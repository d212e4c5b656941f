import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.bags.labels import LabelTable, read_labels
from sgpmil.bags.split_files import read_splits
from sgpmil.bags.splits import (
    Fold,
    MissingSlideWarning,
    PlaceholderCaseWarning,
    SharedCaseWarning,
    UnusedSlideWarning,
    cases_of,
    check_folds,
    divide,
    make_kfold,
    make_monte_carlo,
)
from sgpmil.errors import SplitError


def _table(sizes, classes=2):
    """One patient an entry, with that many slides of one class."""
    rows = [
        (f"s{p}_{i}", f"p{p}", str(p % classes))
        for p, size in enumerate(sizes)
        for i in range(size)
    ]
    return LabelTable(*(tuple(column) for column in zip(*rows, strict=True)))


# Slides of each patient, and the number of classes.
cohorts = st.tuples(st.lists(st.integers(1, 4), min_size=20, max_size=60), st.integers(1, 3))
makers = st.sampled_from([make_kfold, make_monte_carlo])


@settings(deadline=None, max_examples=40)
@given(cohorts, makers, st.integers(0, 999))
def test_every_slide_once_and_no_patient_crosses(cohort, make, seed):
    table = _table(*cohort)
    folds = make(table, num_folds=5, seed=seed)
    for fold in folds:
        assert sorted(fold.train + fold.val + fold.test) == sorted(table.slide_ids)
        owners = [{table.row(s).case_id for s in fold.part(p)} for p in ("train", "val", "test")]
        assert sum(len(owner) for owner in owners) == len(set(table.case_ids))
        for part in ("train", "test"):
            assert {table.row(s).label for s in fold.part(part)} == set(table.labels)
    assert check_folds(folds, table) == folds


@settings(deadline=None, max_examples=40)
@given(cohorts, makers, st.integers(0, 999))
def test_order_of_rows_does_not_matter(cohort, make, seed):
    table = _table(*cohort)
    rows = list(table)
    random.Random(seed).shuffle(rows)
    shuffled = LabelTable(
        tuple(r.slide_id for r in rows),
        tuple(r.case_id for r in rows),
        tuple(r.label for r in rows),
    )
    assert make(table, num_folds=4, seed=seed) == make(shuffled, num_folds=4, seed=seed)


@settings(deadline=None, max_examples=40)
@given(cohorts, st.integers(0, 999))
def test_kfold_tests_each_slide_exactly_once(cohort, seed):
    table = _table(*cohort)
    tested = Counter(s for fold in make_kfold(table, seed=seed) for s in fold.test)
    assert set(tested) == set(table.slide_ids)
    assert set(tested.values()) == {1}


@settings(deadline=None, max_examples=40)
@given(st.integers(40, 150), st.integers(40, 150), makers)
def test_stratified_within_one_slide(negatives, positives, make):
    ids = tuple(f"s{i}" for i in range(negatives + positives))
    table = LabelTable(ids, ids, ("0",) * negatives + ("1",) * positives)
    for fold in make(table, num_folds=5):
        for part, share in (("val", 0.15), ("test", 0.2)):
            counts = Counter(table.row(s).label for s in fold.part(part))
            assert abs(counts["0"] - share * negatives) <= 1.5
            assert abs(counts["1"] - share * positives) <= 1.5


def test_seeds_and_folds_differ():
    table = _table([1] * 60)
    assert make_kfold(table, seed=0) != make_kfold(table, seed=1)
    folds = make_monte_carlo(table)
    assert len({fold.test for fold in folds}) == len(folds) == 10
    assert [fold.name for fold in folds] == [str(k) for k in range(10)]


def test_no_validation():
    assert all(not fold.val for fold in make_kfold(_table([1] * 20), val_fraction=0.0))


@pytest.mark.parametrize(
    "numbers", [{"num_folds": 1}, {"val_fraction": 0.8}, {"val_fraction": -0.1}]
)
def test_impossible_kfold(numbers):
    with pytest.raises(SplitError, match="Expected at least 2 folds"):
        make_kfold(_table([1] * 20), **numbers)


def test_more_folds_than_patients_take_no_memory():
    with pytest.raises(SplitError, match="Expected at most 20 folds"):
        make_kfold(_table([1] * 20), num_folds=10**18)


@pytest.mark.parametrize("make", [make_kfold, make_monte_carlo])
def test_a_negative_seed_is_refused(make):
    with pytest.raises(SplitError, match="seed of at least 0"):
        make(_table([1] * 20), seed=-1)


@pytest.mark.parametrize(
    "numbers", [{"num_folds": 0}, {"test_fraction": 0.0}, {"test_fraction": 0.9}]
)
def test_impossible_monte_carlo(numbers):
    with pytest.raises(SplitError, match="Expected at least 1 fold"):
        make_monte_carlo(_table([1] * 20), **numbers)


pytestmark = pytest.mark.filterwarnings("ignore::sgpmil.bags.splits.UnusedSlideWarning")

TABLE = LabelTable(("a", "b", "c", "d", "e"), ("p", "p", "q", "r", "t"), ("0", "0", "1", "1", "2"))


def test_good_fold_passes():
    fold = Fold("0", train=("a", "b", "c"), val=(), test=("d",))
    assert check_folds([fold], TABLE) == (fold,)


def test_no_folds():
    with pytest.raises(SplitError, match="at least one fold"):
        check_folds([], TABLE)


def test_slide_twice():
    with pytest.raises(SplitError, match="fold 0 names 1 more than once: 'c'"):
        check_folds([Fold("0", ("a", "c"), (), ("c",))], TABLE)
    with pytest.raises(SplitError, match="'a'"):
        check_folds([Fold("0", ("a", "a", "c"), (), ("d",))], TABLE)


def test_patient_in_two_parts():
    fold = Fold("3", ("a", "c"), (), ("b",))
    with pytest.raises(SplitError, match=r"1 patient has .*'train' and 'test' of fold 3: 'p'"):
        check_folds([fold], TABLE)
    with pytest.warns(SharedCaseWarning, match="'p'"):
        assert check_folds([fold], TABLE, on_shared_case="warn") == (fold,)


def test_many_shared_patients_are_counted():
    table = _table([2] * 6, classes=1)
    fold = Fold("0", tuple(f"s{p}_0" for p in range(6)), tuple(f"s{p}_1" for p in range(5)), ())
    fold = Fold("0", fold.train, fold.val, ("s5_1",))
    with pytest.raises(SplitError, match=r"5 patients have .*'p0', 'p1', 'p2' and 2 more"):
        check_folds([fold], table)


def test_unknown_slides():
    fold = Fold("0", ("a", "c", "x"), (), ("d", "y"))
    with pytest.raises(SplitError, match="names 2 it does not have: 'x', 'y'"):
        check_folds([fold], TABLE)
    with pytest.warns(MissingSlideWarning, match="Fold 0 names 2 slides .*: 'x', 'y'"):
        found = check_folds([fold], TABLE, allow_missing=True)
    assert found == (Fold("0", ("a", "c"), (), ("d",)),)


@pytest.mark.filterwarnings("ignore::sgpmil.bags.splits.MissingSlideWarning")
def test_empty_parts():
    with pytest.raises(SplitError, match="none in 'test'"):
        check_folds([Fold("0", ("a",), (), ("x",))], TABLE, allow_missing=True)
    with pytest.raises(SplitError, match="none in 'train'"):
        check_folds([Fold("0", (), (), ("a",))], TABLE)


@pytest.mark.parametrize("part", ["val", "test"])
def test_unknown_class(part):
    other = {"val": ("c",), "test": ("d",)} | {part: ("e",)}
    fold = Fold("0", train=("a",), **other)
    table = LabelTable(TABLE.slide_ids, TABLE.slide_ids, ("0", "0", "0", "0", "2"))
    with pytest.raises(SplitError, match=f"unknown class in the {part} split of fold 0: '2'"):
        check_folds([fold], table)


def test_placeholder_case_is_ignored_with_a_warning():
    ids = tuple(f"s{i}" for i in range(20))
    table = LabelTable(ids, ("x",) * 12 + ids[12:], ("0", "1") * 10)
    fold = Fold("0", ids[:8], (), ids[8:])
    with pytest.warns(PlaceholderCaseWarning, match="'x' covers 12 of 20"):
        check_folds([fold], table)
    with pytest.warns(PlaceholderCaseWarning):
        make_kfold(table)


def test_a_patient_of_nine_slides_is_no_placeholder():
    ids = tuple(f"s{i}" for i in range(12))
    table = LabelTable(ids, ("x",) * 9 + ids[9:], ("0",) * 12)
    with pytest.raises(SplitError, match="'x'"):
        check_folds([Fold("0", ids[:8], (), ids[8:])], table)


def _published(shared_data, name):
    folder = shared_data / "public_splits" / name
    table = read_labels(folder / "labels.csv")
    return read_splits(folder, table), table


@pytest.mark.parametrize("name", ["tcga_nsclc", "panda"])
def test_published_splits_that_leak_nothing(shared_data, name):
    folds, table = _published(shared_data, name)
    assert check_folds(folds, table) == folds


def test_published_split_with_placeholder_cases(shared_data):
    folds, table = _published(shared_data, "camelyon16")
    with pytest.warns(PlaceholderCaseWarning, match="269 of 398"):
        assert check_folds(folds, table) == folds


def test_published_split_that_shares_a_patient(shared_data):
    folds, table = _published(shared_data, "bracs")
    with pytest.raises(SplitError, match=r"1 patient has slides in both 'train' and 'val'.*'67'"):
        check_folds(folds, table)
    with pytest.warns(SharedCaseWarning):
        assert check_folds(folds, table, on_shared_case="warn") == folds


def _cases(*counts):
    ids = [f"{label}{i}" for label, count in enumerate(counts) for i in range(count)]
    return cases_of(LabelTable(tuple(ids), tuple(ids), tuple(name[0] for name in ids)))


def test_case_is_stratified_by_its_rarest_class():
    table = LabelTable(("a", "b", "c", "d"), ("p", "p", "q", "r"), ("n", "t", "n", "n"))
    cases = cases_of(table)
    assert [(case.case_id, case.slide_ids, case.label) for case in cases] == [
        ("p", ("a", "b"), "t"),
        ("q", ("c",), "n"),
        ("r", ("d",), "n"),
    ]


@given(
    st.lists(st.integers(3, 40), min_size=1, max_size=4),
    st.floats(0.05, 0.4),
    st.floats(0.05, 0.4),
    st.integers(0, 99),
)
def test_each_class_is_shared_out_to_within_one_patient(counts, val, test, seed):
    shares = [1 - val - test, val, test]
    parts = divide(_cases(*counts), shares, np.random.default_rng(seed), optional=[1])
    assert sum(len(part) for part in parts) == sum(counts)
    for label, count in enumerate(counts):
        got = [Counter(case.label for case in part)[str(label)] for part in parts]
        assert sum(got) == count
        assert min(got) >= 1
        # Parts that would round to no patient get one, which another part pays for.
        slack = 1 + sum(count * share < 1 for share in shares)
        for number, share in zip(got, shares, strict=True):
            assert abs(number - count * share) <= slack


def test_large_patients_are_not_always_in_one_part():
    ids = [f"s{i}" for i in range(40)]
    owners = ["big"] * 10 + ids[10:]
    cases = cases_of(LabelTable(tuple(ids), tuple(owners), ("x",) * 40))
    homes = {
        next(
            p
            for p, part in enumerate(divide(cases, [0.5, 0.5], np.random.default_rng(seed)))
            if any(case.case_id == "big" for case in part)
        )
        for seed in range(20)
    }
    assert homes == {0, 1}


def test_slides_follow_where_patients_have_several():
    rng = np.random.default_rng(0)
    owners = [f"p{i}" for i in range(60) for _ in range(int(rng.integers(1, 9)))]
    ids = [f"s{i}" for i in range(len(owners))]
    table = LabelTable(tuple(ids), tuple(owners), ("x",) * len(ids))
    parts = divide(cases_of(table), [0.2] * 5, rng)
    sizes = [sum(len(case.slide_ids) for case in part) for part in parts]
    assert max(sizes) - min(sizes) <= 0.1 * len(ids) / 5


def test_too_few_patients():
    with pytest.raises(SplitError, match=r"at least 5 patients of class '1'.*got 4"):
        divide(_cases(9, 4), [0.2] * 5, np.random.default_rng(0))


def test_slides_in_no_part_are_counted_and_named():
    table = LabelTable(tuple("abcdef"), tuple("abcdef"), ("0", "1", "0", "1", "0", "1"))
    whole = Fold("0", ("a", "b"), ("c", "d"), ("e", "f"))
    some = Fold("1", ("a", "b"), (), ("c", "d"))
    with pytest.warns(UnusedSlideWarning, match=r"^2 slides are in no part of fold 1: 'e', 'f'\.$"):
        check_folds([whole, some], table)
    with pytest.warns(UnusedSlideWarning, match=r"2 slides are in no part of any fold: 'e', 'f'"):
        check_folds([some, Fold("2", ("c", "d"), (), ("a", "b"))], table)


@pytest.mark.filterwarnings("error")
def test_a_complete_split_says_nothing():
    table = LabelTable(tuple("abcd"), tuple("abcd"), ("0", "1", "0", "1"))
    check_folds([Fold("0", ("a", "b"), (), ("c", "d"))], table)
