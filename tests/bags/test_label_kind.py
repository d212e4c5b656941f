import re

import pytest

from sgpmil.bags.label_kind import doubt_of_classes, plain_numbers, spelt_as


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["1", "1.0", "0", "0.00"], ("1", "1", "0", "0")),
        (["-1", "+2.0", "1e1"], ("-1", "2", "10")),
        (["0.5", "1.0"], ("0.5", "1")),
        (["1.0", "low"], ("1.0", "low")),
        (["inf", "1.0"], ("inf", "1.0")),
        ([], ()),
    ],
)
def test_whole_numbers_are_written_alike(labels, expected):
    assert plain_numbers(labels) == expected


def of_each(names, count):
    return [name for name in names for _ in range(count)]


@pytest.mark.parametrize(
    ("labels", "column"),
    [
        (["normal", "tumor"], "label"),
        (of_each("012345", 1000), "isup_grade"),
        (of_each(["N", "PB", "UDH", "FEA", "ADH", "DCIS", "IC"], 10), "diagnosis"),
        (["a", "b", "c", "d", "e"], "label"),  # too few slides to tell
        (of_each(["0", "1"], 30), "OS_status"),
        (of_each(["0.5", "1"], 30), "dose"),
    ],
)
def test_classes_raise_no_doubt(labels, column):
    assert doubt_of_classes(labels, column) == ""


@pytest.mark.parametrize(
    ("labels", "column", "expected"),
    [
        (of_each(map(str, range(30, 90)), 2), "age", "60 different numbers for 120 .*regression"),
        (of_each(map(str, range(8)), 50), "OS_months", "8 different numbers .*survival"),
        (of_each(map(str, range(8)), 50), "days to death", "8 different .*survival"),
        ([f"{n / 7:.3f}" for n in range(4)], "score", "4 different numbers .*regression"),
        ([f"patient {n}" for n in range(12)], "label", "12 different texts for 12 .*names"),
        (of_each([f"type {n}" for n in range(21)], 50), "label", "21 different texts"),
        (["Tumor", "normal", "tumor"], "label", "'Tumor' and 'tumor' differ in capitals"),
        (["low grade", "low  grade"], "label", "'low grade' and 'low  grade' differ"),
    ],
)
def test_what_is_no_class_is_told(labels, column, expected):
    assert re.match(expected, doubt_of_classes(labels, column))


def test_labels_are_spelt_as_the_classes_of_a_model():
    assert spelt_as(["1", "0", "2.0"], ["0.0", "1.0", "2"]) == ("1.0", "0.0", "2")
    assert spelt_as(["1", "low", "high"], ["1.0", "low"]) == ("1.0", "low", "high")
