import pytest
import torch

from sgpmil.gpu.random_numbers import RandomNumbers, seed_torch

CPU = torch.device("cpu")


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
