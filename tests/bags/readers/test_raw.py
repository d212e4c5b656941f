from pathlib import Path

import numpy as np
import pytest
import torch

from sgpmil.bags.readers.raw import (
    RawBag,
    as_coords,
    as_features,
    as_instance_labels,
    bag_shape,
)
from sgpmil.errors import BagError, EmptyBagError

WHERE = Path("folder/a.h5")


def test_single_instance_keeps_both_axes():
    assert bag_shape((1, 1, 7), WHERE) == (1, 7)
    assert bag_shape((1, 7), WHERE) == (1, 7)


@pytest.mark.parametrize("shape", [(7,), (2, 3, 4), (1, 1, 3, 4), ()])
def test_other_shapes_are_refused(shape):
    with pytest.raises(BagError, match=r"a\.h5"):
        bag_shape(shape, WHERE)


def test_slide_embedding_is_named_as_such():
    with pytest.raises(BagError, match="slide embedding"):
        bag_shape((768,), WHERE)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "int8", "uint16"])
def test_numbers_become_float32(dtype):
    found = as_features(np.array([[1, 2], [3, 4]], dtype=dtype), WHERE)
    assert found.dtype == torch.float32
    assert found.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("dtype", ["bool", "complex64", "S3", "O", "M8[s]"])
def test_other_types_are_refused(dtype):
    with pytest.raises(BagError, match="real numbers"):
        as_features(np.zeros((2, 2), dtype=dtype), WHERE)


def test_complex_and_bool_tensors_are_refused():
    for dtype in (torch.bool, torch.complex64):
        with pytest.raises(BagError, match="real numbers"):
            as_features(torch.zeros(2, 2, dtype=dtype), WHERE)


def test_read_only_array_is_copied_without_warning():
    array = np.ones((2, 2), dtype=np.float32)
    array.flags.writeable = False
    found = as_features(array, WHERE)
    found[0, 0] = 5
    assert array[0, 0] == 1


def test_overflow_is_refused_as_not_finite():
    raw = RawBag(as_features(np.array([[1e300]]), WHERE))
    with pytest.raises(BagError, match=r"a\.h5: .*finite"):
        raw.to_bag("a", WHERE)


def test_coords_are_whole_numbers():
    found = as_coords(np.array([[[0.6, 2.4]]]), 1, WHERE)
    assert found.dtype == torch.int64
    assert found.tolist() == [[1, 2]]


def test_instance_labels():
    assert as_instance_labels(np.array([0.0, 1.0]), 2, WHERE).dtype == torch.int64
    with pytest.raises(BagError, match="2 instance labels"):
        as_instance_labels(np.zeros(3), 2, WHERE)
    for wrong in (np.array([0.5, 1]), np.array([np.nan, 1]), np.array(["a", "b"])):
        with pytest.raises(BagError, match="whole numbers"):
            as_instance_labels(wrong, 2, WHERE)


def test_empty_raw_bag_is_an_empty_bag_error_with_path():
    with pytest.raises(EmptyBagError, match=r"folder/a\.h5"):
        RawBag(torch.zeros(0, 3)).to_bag("a", WHERE)
