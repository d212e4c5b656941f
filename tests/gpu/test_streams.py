import pytest
import torch

from sgpmil.gpu import streams

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def _nobody_has_any(monkeypatch):
    monkeypatch.setattr(streams, "_owned", {})


def test_each_owner_has_a_stream_of_its_own():
    found = []
    for number in range(20):
        found.append(streams.own_stream(GPU, "fold", number))
        for _ in range(number):  # others take some as well, and torch begins again at the first
            torch.cuda.Stream(GPU)
    assert len({stream.cuda_stream for stream in found}) == 20
    assert [streams.own_stream(GPU, "fold", number) for number in range(20)] == found
    assert streams.own_stream(GPU, "aside", 0, priority=-1) not in found


def test_more_owners_than_streams_are_refused():
    for number in range(32):
        streams.own_stream(GPU, "fold", number)
    with pytest.raises(RuntimeError, match="32 are taken"):
        streams.own_stream(GPU, "fold", 32)
