from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.bags.partition import cases_of, divide
from sgpmil.errors import SplitError


def _cases(*counts):
    ids = [f"{label}{i}" for label, count in enumerate(counts) for i in range(count)]
    return cases_of(ids, ids, [name[0] for name in ids])


def test_case_is_stratified_by_its_rarest_class():
    cases = cases_of(["a", "b", "c", "d"], ["p", "p", "q", "r"], ["n", "t", "n", "n"])
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
    cases = cases_of(ids, owners, ["x"] * 40)
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
    parts = divide(cases_of(ids, owners, ["x"] * len(ids)), [0.2] * 5, rng)
    sizes = [sum(len(case.slide_ids) for case in part) for part in parts]
    assert max(sizes) - min(sizes) <= 0.1 * len(ids) / 5


def test_too_few_patients():
    with pytest.raises(SplitError, match=r"at least 5 patients of class '1'.*got 4"):
        divide(_cases(9, 4), [0.2] * 5, np.random.default_rng(0))
