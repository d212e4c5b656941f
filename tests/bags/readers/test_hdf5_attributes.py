import h5py
import numpy as np

from sgpmil.bags.readers.hdf5_attributes import number_attribute, text_attribute


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
