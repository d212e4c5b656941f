import pytest
import torch

from sgpmil.gpu import recording
from sgpmil.gpu.recording import RandomNumbers, own_stream, seed_torch, side_by_side

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_seed_is_torchs_own():
    torch.manual_seed(3)
    expected = torch.rand(5)
    seed_torch(3, CPU)
    assert torch.equal(torch.rand(5), expected)


def test_states_do_not_disturb_each_other():
    seed_torch(0, CPU)
    expected = torch.rand(4)
    seed_torch(0, CPU)
    one, other = RandomNumbers(CPU), RandomNumbers(CPU)
    drawn = {one: [], other: []}
    for state in (one, other, other, one, other, one, one, other):
        state.take_up()
        drawn[state].append(torch.rand(1))
        state.put_aside()
    assert torch.equal(torch.cat(drawn[one]), expected)
    assert torch.equal(torch.cat(drawn[other]), expected)


@pytest.mark.gpu
def test_a_recording_draws_from_the_state_it_was_made_with():
    gpu = torch.device("cuda")
    before = RandomNumbers(gpu, shared=True)
    seed_torch(0, gpu)
    expected = torch.stack([torch.rand(3, device=gpu) for _ in range(4)])
    found = {}
    for name in ("one", "other"):
        state = RandomNumbers(gpu)
        state.take_up()
        graph, drawn = torch.cuda.CUDAGraph(), torch.empty(3, device=gpu)
        with torch.cuda.graph(graph):
            drawn.copy_(torch.rand(3, device=gpu))
        found[name] = state, graph, drawn, []
    for state, *_ in found.values():
        state.take_up()
        seed_torch(0, gpu)
    for name in ("one", "other", "other", "one", "one", "other", "one", "other"):
        state, graph, drawn, values = found[name]
        state.take_up()
        graph.replay()
        values.append(drawn.clone())
    before.take_up()
    for _, _, _, values in found.values():
        assert torch.equal(torch.stack(values), expected)


@pytest.fixture
def no_stream_is_taken(monkeypatch):
    monkeypatch.setattr(recording, "_owned", {})


@pytest.mark.gpu
@pytest.mark.usefixtures("no_stream_is_taken")
def test_each_owner_has_a_stream_of_its_own():
    found = []
    for number in range(20):
        found.append(own_stream(GPU, "fold", number))
        for _ in range(number):  # others take some as well, and torch begins again at the first
            torch.cuda.Stream(GPU)
    assert len({stream.cuda_stream for stream in found}) == 20
    assert [own_stream(GPU, "fold", number) for number in range(20)] == found
    assert own_stream(GPU, "aside", 0, priority=-1) not in found


@pytest.mark.gpu
@pytest.mark.usefixtures("no_stream_is_taken")
def test_more_owners_than_streams_are_refused():
    for number in range(32):
        own_stream(GPU, "fold", number)
    with pytest.raises(RuntimeError, match="32 are taken"):
        own_stream(GPU, "fold", 32)


def test_without_a_recording_the_large_work_is_launched_first():
    order = []

    def work(name):
        order.append(name)
        return name

    found = side_by_side(CPU, lambda: work("small"), lambda: work("large"))
    assert found == ("small", "large")
    assert order == ["large", "small"]


@pytest.mark.gpu
def test_branches_of_a_recording_give_what_one_after_another_gives():
    a = torch.rand(64, 64, device=GPU)

    def work():
        small, large = side_by_side(GPU, lambda: a.sum(0), lambda: a @ a)
        return small + large

    expected = work()
    found = recording.Recorder(GPU).record(work)
    a.mul_(2)
    expected_later = work()
    found.replay()
    assert torch.equal(found.result, expected_later)
    assert not torch.equal(found.result, expected)
