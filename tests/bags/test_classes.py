import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.bags.classes import class_order
from sgpmil.errors import LabelError


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["tumor", "normal"], ("normal", "tumor")),
        (["epithelium", "no_epithelium"], ("no_epithelium", "epithelium")),
        (["BRAF", "non-BRAF"], ("non-BRAF", "BRAF")),
        (["MUT", "WT"], ("WT", "MUT")),
        (["mutated", "Wild Type"], ("Wild Type", "mutated")),
        (["positive", "Negative"], ("Negative", "positive")),
        (["True", "False"], ("False", "True")),
        (["LUSC", "LUAD"], ("LUAD", "LUSC")),
        (["G1", "NC", "G2"], ("NC", "G1", "G2")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["nodular", "north"], ("nodular", "north")),
    ],
)
def test_order(labels, expected):
    assert class_order(labels) == expected


@given(st.lists(st.text(min_size=1), min_size=1), st.randoms())
def test_order_of_rows_does_not_matter(labels, random):
    shuffled = list(labels)
    random.shuffle(shuffled)
    assert class_order(labels) == class_order(shuffled)
    assert set(class_order(labels)) == set(labels)


def test_given_order():
    assert class_order(["b", "a"], ["b", "a", "c"]) == ("b", "a", "c")
    with pytest.raises(LabelError, match="'c'"):
        class_order(["a", "c"], ("a", "b"))
    with pytest.raises(LabelError, match="each class once"):
        class_order(["a"], ("a", "a"))
