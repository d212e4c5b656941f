from pathlib import Path

import h5py
import numpy as np
import pytest

from sgpmil.bags.readers.stored_values import (
    number_attribute,
    text_attribute,
    whole_coordinates,
    whole_side,
)
from sgpmil.errors import BagError

WHERE = Path("a.h5")


def test_coords_are_rounded_scaled_and_squeezed():
    assert whole_coordinates(np.array([[[0.6, 2.4]]]), 1, WHERE).tolist() == [[1, 2]]
    assert whole_coordinates(np.array([[10, 20]], dtype=np.int32), 1, WHERE, 2.0).tolist() == [
        [20, 40]
    ]


def test_large_whole_coords_are_exact():
    far = np.array([[2**31 - 1, 3], [-(2**24) - 1, 4]])
    assert whole_coordinates(far, 2, WHERE).tolist() == [[2**31 - 1, 3], [-(2**24) - 1, 4]]


@pytest.mark.parametrize(
    "coords",
    [
        np.array([[0, 2**31]]),
        np.array([[0, 2**64 - 1]], dtype=np.uint64),
        np.array([[0.0, 1e300]]),
        np.array([[-1e18, 0.0]]),
    ],
)
def test_coords_beyond_any_slide_are_refused(coords):
    with pytest.raises(BagError, match=r"coordinates of a slide.*a\.h5"):
        whole_coordinates(coords, 1, WHERE)


@pytest.mark.parametrize("side", [0.0, -1.0, 1e308, np.inf, np.nan])
def test_a_side_that_no_patch_has_is_refused(side):
    with pytest.raises(BagError, match=r"side of a patch.*a\.h5"):
        whole_side(side, WHERE)


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
