import gzip

import numpy as np
import pytest

from sgpmil.errors import BagError
from sgpmil.experiments.idx_files import read_idx_images, read_idx_labels
from tests.experiments.tiny_data import write_idx


def test_what_was_written_is_read(tmp_path, rng):
    images = rng.integers(0, 256, (5, 28, 28))
    write_idx(tmp_path / "i.gz", images)
    write_idx(tmp_path / "l.gz", [3, 1, 4, 1, 5])
    np.testing.assert_array_equal(read_idx_images(tmp_path / "i.gz"), images)
    assert read_idx_labels(tmp_path / "l.gz").tolist() == [3, 1, 4, 1, 5]


def _missing(path):
    pass


def _labels_for_images(path):
    write_idx(path, [1, 2, 3])


def _truncated_gzip(path):
    write_idx(path, np.random.default_rng(0).integers(0, 256, (50, 28, 28)))
    path.write_bytes(path.read_bytes()[:-2000])


def _damaged_gzip(path):
    write_idx(path, np.random.default_rng(0).integers(0, 256, (50, 28, 28)))
    content = bytearray(path.read_bytes())
    content[2000:2100] = bytes(100)
    path.write_bytes(bytes(content))


def _truncated_content(path):
    write_idx(path, np.zeros((5, 28, 28)))
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-7]))


def _not_gzip(path):
    path.write_bytes(b"not gzip at all")


def _only_a_few_bytes(path):
    path.write_bytes(gzip.compress(b"\0\0"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_missing, "no such file"),
        (_labels_for_images, "2051.*2049"),
        (_truncated_gzip, "truncated"),
        (_damaged_gzip, "damaged"),
        (_truncated_content, "Expected 3920 bytes.*got 3913"),
        (_not_gzip, "damaged"),
        (_only_a_few_bytes, "magic number"),
    ],
)
def test_errors_are_one_sentence_with_the_file(tmp_path, spoil, said):
    path = tmp_path / "images.gz"
    spoil(path)
    with pytest.raises(BagError, match=said) as error:
        read_idx_images(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
