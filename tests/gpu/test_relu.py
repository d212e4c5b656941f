import pytest
import torch
from torch import nn

from sgpmil.gpu import relu
from sgpmil.gpu.relu import launch_relu_gradient, linear_relu
from tests.gpu.kernel_process import compile_program, run_kernels

MODULE = "tests.gpu.test_relu"


def normal(*shape, seed, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def relative_error(found, expected):
    assert found.shape == expected.shape
    if not expected.numel():
        return 0.0
    scale = max(1.0, float(expected.abs().max()))
    return float((found.double() - expected.double()).abs().max()) / scale


# The kernel alone: (outputs of the ReLU, upstream gradient).


def gradient_cases():
    cases = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        y, dy = normal(300, 7, seed=1, dtype=dtype).relu(), normal(300, 7, seed=2, dtype=dtype)
        cases[f"{dtype}"] = (y, dy)
    for shape in [(1, 1), (1, 130), (33, 128), (5000, 3), (700, 257), (0, 4)]:
        cases[f"{shape}"] = (normal(*shape, seed=3).relu(), normal(*shape, seed=4))
    cases["all stopped"] = (torch.zeros(40, 5), normal(40, 5, seed=5, dtype=torch.float32))
    cases["all passed"] = (torch.ones(40, 5), normal(40, 5, seed=5, dtype=torch.float32))
    cases["transposed"] = (normal(40, 5, seed=6).relu(), normal(5, 40, seed=7).T)
    one = torch.ones(1, 1).double().expand(40, 5)
    cases["one gradient for all"] = (normal(40, 5, seed=6).relu(), one)
    extremes = torch.tensor([[torch.nan, -0.0, torch.inf, 1e-45, 0.0]])
    cases["extremes"] = (extremes, torch.arange(1.0, 6.0).view(1, 5))
    stopped = torch.tensor([[0.0, 1.0]]), torch.tensor([[torch.nan, torch.inf]])
    cases["what is stopped is not summed"] = stopped
    return cases


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    return run_kernels(f"{MODULE}:few_programs", gradient_cases(), folder)


def few_programs(outputs, grad):
    relu._PROGRAMS = 8  # each then goes through several blocks of rows
    return launch_relu_gradient(outputs, grad)


@pytest.mark.parametrize("name", gradient_cases())
def test_gradient_is_that_of_torchs_relu_and_sums_are_its_columns(gradients, name):
    outputs, grad = gradient_cases()[name]
    passed, sums = gradients[name]
    expected = torch.ops.aten.threshold_backward(grad, outputs, 0)
    assert passed.dtype == outputs.dtype
    assert torch.equal(passed, expected)
    exact = outputs.dtype == torch.float64
    assert sums.dtype == (torch.float64 if exact else torch.float32)
    total = expected.double().sum(0)
    if name == "what is stopped is not summed":
        assert torch.equal(sums.sum(0), torch.tensor([0.0, torch.inf]))
    else:
        assert relative_error(sums.sum(0), total) < (1e-13 if exact else 1e-5)


def test_rows_are_summed_by_several_programs(gradients):
    _, sums = gradients["(5000, 3)"]
    assert 1 < len(sums) <= 8
    outputs, grad = gradient_cases()["(5000, 3)"]
    assert not torch.allclose(sums[0], (grad * (outputs > 0)).sum(0))


# The layer: (inputs, weight, bias, upstream gradient, autocast's dtype or None).


def layer_cases():
    def case(*shape, width, dtype=torch.float64, autocast=None):
        return (
            normal(*shape, seed=1, dtype=dtype),
            normal(width, shape[-1], seed=2, dtype=dtype),
            normal(width, seed=3, dtype=dtype),
            normal(*shape[:-1], width, seed=4, dtype=autocast or dtype),
            autocast,
        )

    return {
        "double precision": case(50, 6, width=9),
        "single precision": case(50, 6, width=9, dtype=torch.float32),
        "bfloat16": case(50, 6, width=9, dtype=torch.bfloat16),
        "one row": case(1, 3, width=1),
        "no leading dimension": case(3, width=4),
        "two leading dimensions": case(2, 5, 3, width=4),
        "no rows": case(0, 3, width=4),
        "autocast": case(400, 6, width=9, dtype=torch.float32, autocast=torch.bfloat16),
        "autocast, half": case(40, 6, width=9, dtype=torch.float32, autocast=torch.float16),
        "autocast, double precision": (*case(40, 6, width=9)[:4], torch.bfloat16),
    }


def layer_on_kernels(*case):
    relu.runs_triton = lambda _: True
    return layer_results(linear_relu, *case)


def layer_results(layer, inputs, weight, bias, grad, autocast):
    given = [value.requires_grad_() for value in (inputs, weight, bias)]
    with torch.autocast(inputs.device.type, autocast, enabled=autocast is not None):
        out = layer(*given)
        with torch.no_grad():
            without = layer(*given)
        # As the first layer of a model does: no gradient for the features.
        first = layer(inputs.detach(), weight, bias)
    found = torch.autograd.grad(out, given, grad)
    alone = torch.autograd.grad(first, given[1:], grad)
    return out.detach(), without, *found, *alone


def plain(inputs, weight, bias):
    return nn.functional.relu(nn.functional.linear(inputs, weight, bias))


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    return run_kernels(f"{MODULE}:layer_on_kernels", layer_cases(), folder)


@pytest.mark.parametrize("name", layer_cases())
def test_layer_and_gradients_are_those_of_linear_and_relu(layers, name):
    *case, _ = layer_cases()[name]
    expected = layer_results(plain, *layer_cases()[name])
    exact = layer_results(plain, *(value.detach().double() for value in case), None)
    eps = torch.finfo(expected[0].dtype).eps
    for found, as_torch, value in zip(layers[name], expected, exact, strict=True):
        assert found.dtype == as_torch.dtype
        # Against a double-precision layer, no worse than torch in the same precision by much.
        allowed = 2 * relative_error(as_torch, value) + 4 * eps
        assert relative_error(found, value) <= allowed
    assert relative_error(layers[name][1], layers[name][0]) <= 4 * eps
    assert all(map(torch.equal, layers[name][3:5], layers[name][5:7]))


def test_bias_gradient_keeps_its_precision_under_autocast(layers):
    *_, grad, _ = layer_cases()["autocast"]
    out, _, _, _, of_bias, *_ = layers["autocast"]
    expected = (grad.double() * (out > 0)).sum(0)
    assert of_bias.dtype == torch.float32
    assert relative_error(of_bias, expected) < 1e-6


def test_without_kernels_it_is_torchs():
    case = layer_cases()["autocast"]
    found = layer_results(linear_relu, *layer_cases()["autocast"])
    assert all(map(torch.equal, found, layer_results(plain, *case)))


@pytest.mark.parametrize("known", [{"grad_stride_o": 1}, {"grad_stride_o": 1, "width": 1}, {}])
@pytest.mark.parametrize(
    ("dtype", "sums"), [("bf16", "fp32"), ("fp16", "fp32"), ("fp32", "fp32"), ("fp64", "fp64")]
)
def test_program_compiles_for_a_gpu(dtype, sums, known, own_cache):
    pointers = {**dict.fromkeys(["outputs", "grad", "out"], f"*{dtype}"), "sums": f"*{sums}"}
    constants = {"ROWS": 32, "COLUMNS": 128, **known}
    compile_program(relu.relu_gradient_program, pointers, constants)
