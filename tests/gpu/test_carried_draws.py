import pytest
import torch

from sgpmil.gpu import carried_draws
from sgpmil.gpu.carried_draws import (
    MIN_VARIANCE,
    CarriedRBFDraw,
    carried_draw,
    carried_rbf_draw,
    rbf_covariance,
)
from sgpmil.gpu.cholesky import inverse_factor
from tests.gpu.kernel_process import compile_program, run_kernels

MODULE = "tests.gpu.test_carried_draws"
COLUMNS = carried_draws._SUMMED_COLUMNS
NAMES = ("x", "z", "inverse", "functions", "lengthscale", "scale", "constant", "weight", "bias")


def case(T, M, G, S, *, dtype=torch.float32, linear=True, jitter=0.1, far=0.0):
    """Give the arguments of the draw, and the upstream gradient."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    x, z = normal(T, G) + far, normal(M, G) + far
    lengthscale, scale, constant = (torch.tensor(v) for v in (0.7 * G**0.5, 1.3, 0.4))
    Kzz = rbf_covariance(z, z, lengthscale, scale, constant)
    return (
        x.to(dtype),
        z,
        inverse_factor(Kzz, jitter).float(),
        normal(S, M),
        lengthscale,
        scale,
        constant,
        jitter,
        0.1 * normal(G) if linear else None,
        torch.tensor(0.3) if linear else None,
        normal(S, T),
        normal(S, T),
    )


def at_inducing_points():
    """Some inputs are inducing points, where an inverse that is too large leaves nothing."""
    x, z, inverse, *others = case(70, 7, 4, 3)
    x[::2] = z[torch.arange(35) % 7]
    return x, z, 1.1 * inverse, *others


def small_cases():
    made = {
        f"{T} inputs, {M} points of {G}, {S} samples": case(T, M, G, S)
        for T in (1, 63, 130)
        for M, G, S in [(3, 4, 1), (80, 64, 30)]
    }
    made["points in few dimensions"] = case(63, 80, 4, 1)
    made["few points"] = case(63, 3, 64, 30)
    made["one of each"] = case(1, 1, 1, 1)
    made["largest"] = case(20, 128, 128, 64)
    made["bfloat16"] = case(33, 80, 64, 30, dtype=torch.bfloat16)
    made["half precision"] = case(40, 5, 7, 3, dtype=torch.float16)
    made["no mean"] = case(40, 80, 64, 30, linear=False)
    made["far from the origin"] = case(65, 20, 8, 5, far=30.0)
    made["at inducing points"] = at_inducing_points()
    x, *others = case(9, 7, 4, 3)
    made["out of reach"] = (x + 1e4, *others)
    x, *others, noise, grad = case(40, 7, 6, 3)
    made["turned round"] = (x.T.contiguous().T, *others, noise.T.contiguous().T, grad.T.clone().T)
    made["one gradient for all"] = (x, *others, noise, torch.ones(1, 1).expand(3, 40))
    return made


def large_cases():
    return {
        "large tiles": case(130, 80, 64, 30),
        "large tiles, bfloat16": case(200, 20, 7, 5, dtype=torch.bfloat16),
        "large tiles, no mean": case(129, 33, 20, 17, linear=False),
        "large tiles, at inducing points": at_inducing_points(),
    }


CASES = small_cases() | large_cases()


def drawn_and_gradients(as_of_many, *arguments):
    """Draw in small tiles, or as if there were many inputs: in large tiles, several to a part."""
    carried_draws._MANY = 0 if as_of_many else 1_000
    carried_draws._MOST_PARTS = 2 if as_of_many else 128
    if not torch.cuda.is_available() and len(arguments[1]) > 20:
        # The interpreter takes as long for a wide block as for a narrow one, and there are hundreds
        # of narrow ones. With fewer points they are as narrow as on a GPU.
        carried_draws._SUMMED_COLUMNS = 1024
    else:
        carried_draws._SUMMED_COLUMNS = COLUMNS
    *given, grad = (v.clone() if isinstance(v, torch.Tensor) else v for v in arguments)
    wanted = [v.requires_grad_() for v in given[:-1] if isinstance(v, torch.Tensor)]
    f = CarriedRBFDraw.apply(*given)
    return f.detach(), *torch.autograd.grad(f, wanted, grad)


def in_double(*arguments):
    """Do the same with the torch code, in double precision.

    Gives the sum of the absolute gradients of the covariances, too: the parameters of the kernel
    have gradients that are sums of those, which cancel out.
    """
    *given, grad = (v.double() if isinstance(v, torch.Tensor) else v for v in arguments)
    wanted = [v.requires_grad_() for v in given[:-1] if isinstance(v, torch.Tensor)]
    x, z, inverse, functions, *parameters, jitter, weight, bias, noise = given
    covariance = rbf_covariance(z, x, *parameters)
    variance = (parameters[1] + parameters[2] + jitter).expand(len(x))
    f = carried_draw(covariance, inverse, functions, variance, noise)
    if weight is not None:
        f = f + x @ weight + bias
    *gradients, of_covariance = torch.autograd.grad(f, [*wanted, covariance], grad)
    return f.detach(), gradients, float(of_covariance.abs().sum())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    cases = {name: (False, *given) for name, given in small_cases().items()}
    cases |= {name: (True, *given) for name, given in large_cases().items()}
    cases["once more"] = cases["large tiles"]
    return run_kernels(f"{MODULE}:drawn_and_gradients", cases, tmp_path_factory.mktemp("carried"))


def assert_close(found, expected, tolerance, summed=0.0):
    assert found.shape == expected.shape
    # Relative to the largest: entries that cancel out are no more precise than what they are of.
    bound = tolerance * max(1.0, float(expected.abs().max())) + 1e-7 * summed
    assert float((found.double() - expected).abs().max()) <= bound


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_the_chain(found, name):
    given = CASES[name]
    f, *gradients = found[name]
    expected, expected_gradients, summed = in_double(*given)
    assert f.dtype == torch.float32
    assert_close(f, expected, 2e-6)
    names = NAMES[:7] if given[8] is None else NAMES
    for parameter, ours, theirs in zip(names, gradients, expected_gradients, strict=True):
        assert ours.dtype == (given[0].dtype if parameter == "x" else torch.float32)
        of_kernel = parameter in ("lengthscale", "scale", "constant")
        tolerance = max(1e-5, torch.finfo(ours.dtype).eps)
        assert_close(ours, theirs, tolerance, summed if of_kernel else 0.0)


def test_some_variances_are_at_their_floor_in_that_test():
    x, z, inverse, _, *parameters, jitter, _, _, _, _ = at_inducing_points()
    B = inverse @ rbf_covariance(z, x, *parameters)
    left = parameters[1] + parameters[2] + jitter - B.square().sum(0)
    assert (left[::2] < MIN_VARIANCE - 1e-3).all()
    assert (left[1::2] > MIN_VARIANCE + 1e-3).sum() > 10


@pytest.mark.slow
def test_the_same_input_gives_the_same_result(found):
    assert all(map(torch.equal, found["large tiles"], found["once more"]))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((80, 64, 30), True), ((128, 128, 64), True)]
    + [(sizes, False) for sizes in [(129, 64, 30), (80, 129, 30), (80, 64, 65)]],
)
def test_what_fits(sizes, expected):
    assert carried_draws._fits(*sizes) == expected


def test_torch_code_is_taken_without_a_gpu_and_adds_a_linear_mean():
    *given, _ = case(5, 7, 4, 3, dtype=torch.float16)
    x, *_, weight, bias, noise = given
    expected, _, _ = in_double(x.float(), *given[1:], torch.ones(3, 5))
    assert_close(carried_rbf_draw(*given), expected, 2e-6)
    without = carried_rbf_draw(*given[:8], None, None, noise)
    assert_close(without + x.float() @ weight + bias, expected, 2e-6)


# Draws under any kernel.


def formula_case(variance, M=4, T=6, S=3):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).double()

    return (
        (0.3 * normal(M, T)).requires_grad_(),
        normal(M, M).tril().requires_grad_(),
        normal(S, M).requires_grad_(),
        torch.full((T,), variance).double().requires_grad_(),
        normal(S, T),
    )


def written_out(covariance, inverse, values, variance, noise):
    B = inverse @ covariance
    left = (variance - B.square().sum(0)).clamp(min=MIN_VARIANCE)
    return values @ B + left.sqrt() * noise


@pytest.mark.parametrize("variance", [5.0, 0.5, -1.0], ids=["all-left", "some-left", "none-left"])
def test_draws_and_gradients_under_any_kernel_are_those_of_the_formula(variance):
    found = []
    weights = torch.randn(3, 6, generator=torch.Generator().manual_seed(1)).double()
    for function in (carried_draw, written_out):
        given = formula_case(variance)
        drawn = function(*given)
        (weights * drawn).sum().backward()
        found.append([drawn, *[x.grad for x in given[:4]]])
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_some_variances_are_at_their_floor_in_the_test_of_the_formula():
    covariance, inverse, _, variance, _ = formula_case(0.5)
    left = variance - (inverse @ covariance).square().sum(0)
    assert 0 < (left > MIN_VARIANCE).sum() < 6


# Compilation for a GPU.

SHARED_MEMORY = 227 * 1024
NUMBERS = {"num_rows", "num_parts", "rows_of_part", "grad_stride", "out_stride", "stride"}
SIZES = {
    "usual": {"M": 80, "G": 64, "S": 30, "POINTS": 128, "DIMS": 64, "SAMPLES": 32, "SHARES": 128},
    "small": {"M": 3, "G": 4, "S": 1, "POINTS": 16, "DIMS": 16, "SAMPLES": 16, "SHARES": 16},
    "largest": {
        "M": 128,
        "G": 128,
        "S": 64,
        "POINTS": 128,
        "DIMS": 128,
        "SAMPLES": 64,
        "SHARES": 256,
    },
}
TILES = {
    "few": (carried_draws._DRAW, carried_draws._GRADIENT),
    "many": (carried_draws._DRAW_MANY, carried_draws._GRADIENT_MANY),
}


def compiled(program, rows, constants, num_warps, num_stages=2):
    names = program.compiled.arg_names
    numbers = dict.fromkeys(NUMBERS, "i32") | {
        "jitter": "fp32",
        "x": f"*{rows}",
        "x_grad": f"*{rows}",
    }
    types = {name: numbers.get(name, "*fp32") for name in names}
    aligned = [n for n in names if types[n].startswith("*") or n.endswith("stride")]
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return compile_program(program, types, constants, aligned, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("number", TILES)
@pytest.mark.parametrize(
    ("size", "rows"), [("usual", "bf16"), ("small", "fp32"), ("largest", "fp32")]
)
def test_draws_and_their_gradients_compile(size, rows, number):
    constants = {"FLOOR": 1e-6, "LINEAR": True, "PRECISION": carried_draws._PRECISION}
    if size == "small":
        constants |= {"LINEAR": False, "weight": None, "bias": None}
    programs = carried_draws.draw_program, carried_draws.draw_gradient_program
    for program, tile in zip(programs, TILES[number], strict=True):
        cut = {"ROWS": tile.rows, "CHUNK": tile.chunk}
        sizes = SIZES[size] | constants | cut
        kernel = compiled(program, rows, sizes, tile.num_warps, tile.num_stages)
        assert kernel.metadata.shared <= SHARED_MEMORY
        # On the tensor cores: as plain products they would spill what the registers do not hold.
        assert "mma" in kernel.asm["ptx"]


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("size", "rows"), [("usual", "bf16"), ("small", "fp32"), ("largest", "fp32")]
)
def test_products_and_sums_compile(size, rows):
    block = min(carried_draws._PART_BLOCK, SIZES[size]["POINTS"])
    constants = {"ROWS": carried_draws._PART_ROWS, "TILE": 16, "TILES": 32, "BLOCK": block}
    constants |= SIZES[size] | {"PRECISION": carried_draws._PRECISION}
    products = compiled(carried_draws.products_program, rows, constants, 8)
    assert products.metadata.shared <= SHARED_MEMORY
    assert "mma" in products.asm["ptx"]
    summed = {"WIDTH": 100, "ROWS": 64, "COLUMNS": 32}
    compiled(carried_draws.sums_program, rows, summed, 4)
