import pytest
import torch

from sgpmil.bags.segments import OneSegment, Segments


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


def test_one_segment_is_the_segments_of_its_rows():
    one, same = OneSegment.of_rows(torch.ones(3, 2)), Segments.of(torch.tensor([0, 3]))
    assert one.index.tolist() == same.index.tolist()
    assert one.sizes.tolist() == same.sizes.tolist()
    assert (one.lengths, len(one), one.num_rows) == (same.lengths, len(same), same.num_rows)
