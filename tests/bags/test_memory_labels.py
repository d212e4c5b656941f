import numpy as np
import pandas as pd
import pytest

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.labels import read_labels
from sgpmil.bags.memory_labels import memory_labels
from sgpmil.bags.reading import read_bags
from sgpmil.errors import BagError, LabelError


@pytest.mark.parametrize(
    "columns",
    [
        {"slide_id": ["a.svs", "b"], "case_id": ["p", "q"], "label": ["tumor", "normal"]},
        {"Slide ID": ["a", "b"], "patient": [1, 2], "label": [1.0, 0.0]},
        {"slide_id": ["007", "8"], "label": [True, False]},
        {"slide_id": [7, 8], "label": [0, 1]},
        {"slide_id": ["a", "b", "c"], "label": ["x", None, "y"]},
        {"slide_id": ["a", "b", "c"], "label": [1, np.nan, 0]},
        {"slide_id": ["a", "b"], "fold": [0, 1], "grade": [" low  risk", "high"]},
        {"slide_id": ["a", "b"], "case_id": ["p", None], "label": ["0", "1"]},
    ],
)
def test_a_frame_is_read_as_its_file(tmp_path, columns):
    frame = pd.DataFrame(columns)
    frame.to_csv(tmp_path / "labels.csv", index=False)
    in_memory, on_disk = memory_labels(frame), read_labels(tmp_path / "labels.csv")
    assert in_memory == on_disk
    indexed = frame.set_index(frame.columns[0])
    assert memory_labels(indexed) == on_disk
    unnamed = indexed.rename_axis(None)
    assert memory_labels(unnamed).slide_ids == on_disk.slide_ids


@pytest.mark.parametrize("kind", ["category", "string", "object"])
def test_kinds_of_columns(kind):
    frame = pd.DataFrame({"slide_id": ["a", "b"], "label": ["x", "y"]}).astype(kind)
    assert memory_labels(frame).labels == ("x", "y")
    missing = pd.DataFrame({"slide_id": ["a", "b"], "label": pd.array([1, None], "Int64")})
    assert memory_labels(missing).slide_ids == ("a",)


def test_series_and_dictionaries():
    assert memory_labels(pd.Series({"a": 1.0, "b": 0.0})).labels == ("1", "0")
    assert memory_labels({"a.svs": "x", "b": None, 7: "y"}).slide_ids == ("a", "7")


def test_named_columns_and_a_filtered_frame():
    frame = pd.DataFrame({"nr": ["a", "b", "c"], "grade": [1, 2, 3], "who": ["p", "p", "q"]})
    found = memory_labels(
        frame[frame.grade > 1], slide_column="nr", label_column="grade", case_column="who"
    )
    assert (found.slide_ids, found.labels, found.case_ids) == (("b", "c"), ("2", "3"), ("p", "q"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (pd.DataFrame({"label": [1, 0]}), r"column of slides .* \(the DataFrame\).*`slide_column`"),
        (
            pd.DataFrame({"slide_id": ["a"], "x": [1], "z": [2]}),
            "Expected a column .label., .*`label_column`",
        ),
        (pd.DataFrame({"slide_id": ["a", "a"], "label": [1, 0]}), "'a \\(2 times\\)'"),
        (pd.DataFrame({"slide_id": ["a"], "label": [np.nan]}), "at least one slide with a label"),
        ({}, "at least one slide with a label"),
        ({"a": [1, 0]}, "a list for a label"),
    ],
)
def test_unusable_labels(labels, message):
    with pytest.raises(LabelError, match=message) as caught:
        memory_labels(labels)
    assert "--" not in str(caught.value)


@pytest.mark.usefixtures("unchecked_shapes")
def test_labels_of_another_type():
    with pytest.raises(LabelError, match="a dictionary from slide to label, but got a list"):
        memory_labels(["a", "b"])


@pytest.fixture
def folder(tmp_path, features):
    (tmp_path / "in").mkdir()
    for i, name in enumerate("abc"):
        np.save(tmp_path / "in" / f"{name}.npy", features(i + 1))
    return tmp_path / "in"


def test_read_bags_with_a_frame_and_a_dictionary(folder):
    frame = pd.DataFrame({"label": ["t", "n", "t"], "case_id": ["p", "q", "p"]}, list("cab"))
    bags = read_bags(folder, frame)
    assert (bags.labels, bags.case_ids) == ((0, 1, 1), ("q", "p", "p"))
    assert bags.class_names == ("n", "t")
    same = read_bags(folder, {"c": "t", "a": "n", "b": "t"}, classes=["t", "n"])
    assert (same.labels, same.case_ids) == ((1, 0, 0), ("a", "b", "c"))


def test_labels_that_do_not_fit(folder):
    with pytest.raises(LabelError, match=r"1 slides without a label \('b'\).*\(the labels\)"):
        read_bags(folder, {"a": 1, "b": np.nan, "c": 0})
    with pytest.raises(LabelError, match="such as 'a', but got only such as 'x'"):
        read_bags(folder, {"x": 1})
    frame = pd.DataFrame({"slide_id": list("abc"), "OS_months": [1.5, 20.0, 3.25]})
    with pytest.raises(LabelError, match=r"column 'OS_months', but .*times \(survival\)") as caught:
        read_bags(folder, frame)
    assert "--" not in str(caught.value)


# Bags from memory


def test_a_dictionary_of_arrays(features):
    arrays = {"s1": features(3), "s2": features(2), "s3": features(1)}
    frame = pd.DataFrame({"slide_id": ["s3", "s1", "s2"], "label": ["x", "y", "x"], "case_id": 1})
    coords = {"s1": np.zeros((3, 2)), "s3": np.ones((1, 2))}
    bags = BagDataset.from_arrays(arrays, frame, coords=coords, patch_size=224)
    assert bags.slide_ids == ("s1", "s2", "s3")
    assert (bags.labels, bags.case_ids) == ((1, 0, 0), ("1", "1", "1"))
    assert bags[1].coords is None
    assert (bags[2].coords.tolist(), bags[2].patch_size) == ([[1, 1]], 224)
    np.testing.assert_array_equal(bags[0].features, arrays["s1"])
    series = frame.set_index("slide_id")["label"]
    assert BagDataset.from_arrays(arrays, series).labels == (1, 0, 0)
    in_order = pd.Series(["y", "x", "x"])
    assert BagDataset.from_arrays(arrays, in_order).labels == (1, 0, 0)
    assert BagDataset.from_arrays(list(arrays.values()), in_order).labels == (1, 0, 0)
    named = BagDataset.from_arrays(arrays, {"s1": 1, "s2": 0, "s3": 0}, case_ids=["p", "p", "q"])
    assert named.case_ids == ("p", "p", "q")


def test_a_frame_of_slides_labels_them_again(features):
    arrays = {"s1": features(3), "s2": features(2), "s3": features(1)}
    bags = BagDataset.from_arrays(arrays, {"s1": "y", "s2": "x", "s3": "x"}, case_ids=list("ppq"))
    frame = bags.to_pandas()
    assert frame["num_instances"].tolist() == [3, 2, 1]
    again = BagDataset.from_arrays(arrays, frame[::-1])
    assert (again.labels, again.case_ids) == (bags.labels, bags.case_ids)
    assert BagDataset.from_arrays(arrays).to_pandas()["label"].isna().all()


def test_dictionaries_that_do_not_fit(features):
    arrays = {"s1": features(3), "s2": features(2)}
    with pytest.raises(LabelError, match=r"1 slides without a label \('s2'\)"):
        BagDataset.from_arrays(arrays, {"s1": "x"})
    with pytest.raises(BagError, match=r"Expected 2 case_ids, .* but got 1"):
        BagDataset.from_arrays(arrays, {"s1": "x", "s2": "y"}, case_ids=["p"])
    with pytest.raises(BagError, match="without `slide_ids`"):
        BagDataset.from_arrays(arrays, slide_ids=["a", "b"])
    with pytest.raises(BagError, match="`coords` of named bags, but got 1 of others: 's9'"):
        BagDataset.from_arrays(arrays, coords={"s9": np.zeros((3, 2))})
