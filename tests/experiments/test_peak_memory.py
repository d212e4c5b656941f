import pytest
import torch

from sgpmil.experiments.peak_memory import PeakMemory
from tests.waiting import wait_until

_CPU = torch.device("cpu")


def test_freed_memory_counts_and_memory_from_before_does_not():
    before = torch.ones(2**25)  # 128 MiB
    with PeakMemory(_CPU) as peak:
        passing = torch.ones(2**24)
        wait_until(lambda: peak._most - peak._before > 0.9 * 2**26)  # the thread has looked
        del passing
    if peak.bytes is None:
        pytest.skip("the system does not tell")
    assert 0.9 * 2**26 < peak.bytes < 1.5 * 2**26
    del before


@pytest.mark.parametrize(("with_kept", "expected"), [(False, 50 - 3), (True, 900 - 200)])
def test_of_a_gpu_what_is_kept_counts_where_asked_for(monkeypatch, with_kept, expected):
    looks = {
        "memory_allocated": 3,
        "max_memory_allocated": 50,
        "memory_reserved": 200,
        "max_memory_reserved": 900,
    }
    for name, found in looks.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, found=found: found)
    done = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: done.append("reset"))
    with PeakMemory(torch.device("cuda"), with_kept=with_kept) as peak:
        assert done == ["emptied", "reset"]
    assert peak.bytes == expected


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
