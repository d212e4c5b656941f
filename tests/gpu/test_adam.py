import pytest
import torch

from sgpmil.gpu.adam import AdamStep, norm_program, update_program
from tests.gpu.kernel_process import compile_program, run_kernels

MODULE = "tests.gpu.test_adam"
SHAPES = ((70, 40), (3,), (), (2049,))
STEPS = 4
TABLES = {"table": "*i64", "chunk_tensors": "*i64", "chunk_starts": "*i64", "partials": "*fp32"}
NUMBERS = ("clip", "weight_decay", "eps", "beta2", "rest1", "rest2", "log_beta1", "log_beta2")


def start(name, clip, device="cpu"):
    """Make parameters with gradients for each step, one parameter without any."""
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]
    gradients = [
        [(2.0 * torch.randn(shape, generator=generator)).bfloat16().float() for shape in SHAPES]
        for _ in range(STEPS)
    ]
    unused = torch.ones(5, device=device)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    rates = torch.tensor([0.01, 0.2], device=device)  # the third parameter has its own
    slow, fast = rates.unbind()
    one, two, three, four = parameters
    groups = [
        {"params": [one, two, four, unused], "lr": slow, "weight_decay": 0.1},
        {"params": [three], "lr": fast, "weight_decay": 0.02},
    ]
    optimiser = kind(groups, capturable=device != "cpu")
    return rates, parameters, unused, gradients, optimiser


def stepped(name, clip):
    """Take steps by the kernels; the first parameter's gradients come in half precision."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rates, parameters, unused, gradients, optimiser = start(name, clip, device)
    for p in (*parameters, unused):
        state = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        optimiser.state[p] = {"step": torch.zeros((), device=device), **state}
    half = parameters[0].bfloat16()
    step = AdamStep(optimiser, rates, clip, {parameters[0]: half})
    for given in gradients:
        for p, g in zip(parameters, given, strict=True):
            p.grad = g.to(device)
        parameters[0].grad, half.grad = None, given[0].bfloat16().to(device)
        table = step.table()
        step.fill(table)
        step.launch(table)
    steps = [optimiser.state[p]["step"] for p in (*parameters, unused)]
    moments = [optimiser.state[p]["exp_avg_sq"] for p in parameters]
    step.forget_gradients()
    forgotten = all(p.grad is None for p in (*parameters, half))
    return [*parameters, unused], half, steps, moments, torch.tensor(forgotten)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    cases = {f"{n}-{c}": (n, c) for n in ("adam", "adamw") for c in (0.0, 1.0, 1e4)}
    return run_kernels(f"{MODULE}:stepped", cases, tmp_path_factory.mktemp("adam"))


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("clip", [0.0, 1.0, 1e4])
def test_steps_are_those_of_torch(found, name, clip):
    weights, half, steps, moments, forgotten = found[f"{name}-{clip}"]
    _, parameters, unused, gradients, optimiser = start(name, clip)
    for given in gradients:
        for p, g in zip(parameters, given, strict=True):
            p.grad = g.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimiser.step()
    for ours, theirs in zip(weights, [*parameters, unused], strict=True):
        assert torch.allclose(ours, theirs, rtol=2e-6, atol=2e-7)
    for ours, p in zip(moments, parameters, strict=True):
        assert torch.allclose(ours, optimiser.state[p]["exp_avg_sq"], rtol=1e-5, atol=1e-12)
    assert [int(s) for s in steps] == [STEPS] * len(SHAPES) + [0]  # without gradient, no step
    # A GPU rounds to the nearest; the interpreter cuts off.
    assert torch.allclose(half.float(), weights[0], rtol=2**-7, atol=0)
    assert forgotten


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("clipped", [True, False])
def test_programs_compile_for_a_gpu(decoupled, clipped):
    types = TABLES | dict.fromkeys(NUMBERS, "fp32") | dict.fromkeys(("rates", "decays"), "*fp32")
    constants = {"CHUNK": 2048, "CHUNKS": 512, "DECOUPLED": decoupled, "CLIPPED": clipped}
    compile_program(norm_program, types, constants)
    compile_program(update_program, types, constants)
