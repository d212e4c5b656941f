import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.bags.target import (
    ClassTarget,
    OrdinalTarget,
    class_order,
    encode_classes,
    read_target,
)
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


def test_a_class_target_encodes_decodes_and_predicts():
    target = ClassTarget.of(["tumor", "normal", "tumor"])
    assert [target.decode(target.encode(name)) for name in target.names] == ["normal", "tumor"]
    probs = np.array([[0.2, 0.8], [0.9, 0.1]])
    assert target.predicted(probs).tolist() == [1, 0]
    with pytest.raises(LabelError, match="'stroma'"):
        target.encode("stroma")
    with pytest.raises(LabelError, match="each class once"):
        ClassTarget(("a", "a"))


@pytest.mark.parametrize(("num", "ranked"), [(0, ()), (1, ()), (2, (1,)), (3, (0, 1, 2))])
def test_the_second_of_two_classes_is_ranked_and_every_class_of_several(num, ranked):
    assert ClassTarget.numbered(num).ranked == ranked


def test_a_target_is_read_as_it_was_written_and_from_old_files():
    target = ClassTarget(("no", "yes"))
    assert read_target({"target": json.loads(json.dumps(target.to_json()))}) == target
    assert read_target({"class_names": ["no", "yes"]}) == target
    with pytest.raises(ValueError, match="'survival'"):
        read_target({"target": {"kind": "survival", "names": []}})
    with pytest.raises(KeyError):
        read_target({})


def test_labels_of_any_type_become_class_indices():
    assert encode_classes(np.array([3, 1, 3]), None) == ((1, 0, 1), ClassTarget(("1", "3")))
    assert encode_classes(["b", None], ("a", "b")) == ((1, None), ClassTarget(("a", "b")))
    assert encode_classes([1.0, 0], ("a", "b")) == ((1, 0), ClassTarget(("a", "b")))


def test_ordered_classes_need_an_order():
    assert ClassTarget.of(["G2", "NC", "G1"], ordinal=True) == OrdinalTarget(("NC", "G1", "G2"))
    assert ClassTarget.of(["10", "9"], ordinal=True) == OrdinalTarget(("9", "10"))
    given = ClassTarget.of(["b", "a"], ["b", "a", "c"], ordinal=True)
    assert given == OrdinalTarget(("b", "a", "c"))
    assert given != ClassTarget(("b", "a", "c"))
    with pytest.raises(LabelError, match=r"known order, but got 'LUAD', 'LUSC'\. Give them"):
        ClassTarget.of(["LUSC", "LUAD"], ordinal=True)
    with pytest.raises(LabelError, match=r"one class a rank, but got '0\+0', 'negative'"):
        ClassTarget.of(["0+0", "negative", "3+3"], ordinal=True)


def test_known_scales_of_three_classes_decide_the_order_of_classes():
    assert class_order(["G2", "NC", "G1", "G10"]) == ("NC", "G1", "G2", "G10")
    assert class_order(["high", "low"]) == ("high", "low")  # of two, as ever


def test_an_ordinal_target_is_read_as_it_was_written():
    target = OrdinalTarget(("low", "high"))
    assert read_target({"target": json.loads(json.dumps(target.to_json()))}) == target
    assert encode_classes([1, 0], ("low", "high"), ordinal=True) == ((1, 0), target)
