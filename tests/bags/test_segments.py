import pytest
import torch

from sgpmil.bags.segments import Segments


@pytest.mark.parametrize(
    ("sizes", "index"),
    [([2, 1], [0, 0, 1]), ([1], [0]), ([2, 0], [0, 0]), ([0, 3], [1, 1, 1])],
    ids=["two", "one", "empty-last", "empty-first"],
)
def test_rows_know_their_segment(sizes, index):
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    segments = Segments.of(offsets)
    assert segments.index.tolist() == index
    assert segments.sizes.tolist() == sizes
    assert len(segments) == len(sizes)
    assert segments.num_rows == sum(sizes)
