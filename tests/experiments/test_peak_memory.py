import pytest
import torch

from sgpmil.experiments.peak_memory import PeakMemory

_CPU = torch.device("cpu")


def test_freed_memory_counts_and_memory_from_before_does_not():
    before = torch.ones(2**25)  # 128 MiB
    with PeakMemory(_CPU) as peak:
        torch.ones(2**24).sum()
    if peak.bytes is None:
        pytest.skip("the system does not tell")
    assert 0.9 * 2**26 < peak.bytes < 1.5 * 2**26
    del before


@pytest.mark.gpu
def test_what_recordings_keep_counts():
    device = torch.device("cuda")
    numbers = torch.ones(2**24, device=device)  # 64 MiB
    graphs = []
    with PeakMemory(device, with_kept=True) as peak:
        for _ in range(3):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                (numbers + 1).sum()
            graphs.append(graph)
    assert peak.bytes is not None
    assert 3 * 2**26 <= peak.bytes < 4 * 2**26
