from pathlib import Path

import h5py
import numpy as np
import pytest

from sgpmil.bags.readers.stored_values import number_attribute, text_attribute, whole_coordinates
from sgpmil.errors import BagError

WHERE = Path("a.h5")


def test_coords_are_rounded_scaled_and_squeezed():
    assert whole_coordinates(np.array([[[0.6, 2.4]]]), 1, WHERE).tolist() == [[1, 2]]
    assert whole_coordinates(np.array([[10, 20]], dtype=np.int32), 1, WHERE, 2.0).tolist() == [
        [20, 40]
    ]


def test_large_whole_coords_are_exact():
    assert whole_coordinates(np.array([[2**60 + 1, 3]]), 1, WHERE).tolist() == [[2**60 + 1, 3]]


@pytest.mark.parametrize(
    "coords", [np.zeros((3, 2)), np.zeros((2, 3)), np.full((2, 2), np.nan), np.full((2, 2), "x")]
)
def test_wrong_coords_are_refused(coords):
    with pytest.raises(BagError, match=r"coordinates.*a\.h5"):
        whole_coordinates(coords, 2, WHERE)


def test_attributes_of_any_kind(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["none"] = "None"
        file.attrs["pair"] = np.array([2.0, 3.0])
        file.attrs["bytes"] = np.bytes_(b"uni")
        file.attrs["nothing"] = np.array([], dtype=float)
        file.attrs["number"] = "20"
        assert number_attribute(file.attrs, "none") is None
        assert number_attribute(file.attrs, "absent") is None
        assert number_attribute(file.attrs, "nothing") is None
        assert number_attribute(file.attrs, "pair") == 2.0
        assert number_attribute(file.attrs, "number") == 20.0
        assert text_attribute(file.attrs, "bytes") == "uni"
        assert text_attribute(file.attrs, "none") is None
