import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.errors import TrainingError
from sgpmil.gpu import cholesky
from sgpmil.gpu.cholesky import _factor_on_device, inverse_factor, jittered_cholesky
from tests.gpu.kernel_process import compile_program, run_kernels

MOST_SHARED = 99 * 1024  # bytes that a program may have on every GPU with bfloat16
DOUBLES = dict.fromkeys(["inverse", "inner"], "*fp64")
PLAIN = {"stride_column": 1}
TRANSPOSED = {"stride_row": 1}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.sampled_from([1e-1, 1e-3, 1e-6]), st.integers(0, 99))
def test_factor_gives_the_jittered_matrix_back(size, jitter, seed):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double()
    covariance = root @ root.T
    factor = jittered_cholesky(covariance, jitter)
    expected = covariance + jitter * torch.eye(size).double()
    assert torch.allclose(factor @ factor.T, expected, atol=1e-12, rtol=1e-12)
    assert torch.equal(factor, factor.tril())


def test_float32_is_factorised_in_float64():
    covariance = torch.ones(3, 3)  # float32 could not tell 1 + 1e-8 from 1
    factor = jittered_cholesky(covariance, 1e-8)
    assert factor.dtype == torch.float64
    expected = torch.ones(3, 3).double() + 1e-8 * torch.eye(3).double()
    assert torch.allclose(factor @ factor.T, expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize(("smallest", "added"), [(0.5e-4, 1e-4), (-0.5e-3, 1e-3), (-0.05, 0.1)])
def test_jitter_rises_tenfold_until_it_is_enough(smallest, added):
    covariance = torch.diag(torch.tensor([1.0, 2.0, smallest])).double()
    factor = jittered_cholesky(covariance, 1e-4)
    assert torch.allclose(
        factor.diagonal().square(), covariance.diagonal() + added, atol=1e-12, rtol=0
    )


def test_jitter_rises_no_more_than_thousandfold():
    with pytest.raises(TrainingError, match=r"even with 0\.1.*Lower the learning rate"):
        jittered_cholesky(torch.diag(torch.tensor([1.0, -0.11])), 1e-4)


@pytest.mark.parametrize("position", [(0, 0), (1, 0), (2, 2)])
def test_nan_is_a_training_error(position):
    covariance = torch.eye(3)
    covariance[position] = torch.nan
    with pytest.raises(TrainingError, match="is NaN or has run away"):
        jittered_cholesky(covariance, 1e-4)


def test_gradient_is_that_of_the_factorisation():
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double()
    root.requires_grad_()
    assert torch.autograd.gradcheck(lambda r: jittered_cholesky(r @ r.T, 1e-2), root)


def root(size, seed=0):
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double()


def test_it_is_the_inverse_of_the_factor():
    covariance = root(5) @ root(5).T
    expected = torch.linalg.inv(jittered_cholesky(covariance, 1e-3))
    assert torch.allclose(inverse_factor(covariance, 1e-3), expected, atol=1e-10)


def test_gradient_of_the_inverse_is_that_of_factor_and_inverse():
    r = root(4).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: inverse_factor(r @ r.T, 1e-2), r)
    weights = root(4, seed=1)
    found = []
    for inverse in (
        lambda K: inverse_factor(K, 1e-2),
        lambda K: torch.linalg.inv(torch.linalg.cholesky(K + 1e-2 * torch.eye(4).double())),
    ):
        r = root(4).requires_grad_()
        (weights * inverse(r @ r.T)).sum().backward()
        found.append(r.grad)
    assert torch.allclose(*found, atol=1e-10)


def test_single_precision_is_inverted_in_double():
    assert inverse_factor(torch.ones(3, 3), 1e-8).dtype == torch.float64
    r = torch.ones(3, 3, requires_grad=True)
    inverse_factor(r, 1e-2).sum().backward()
    assert r.grad.dtype == torch.float32


def test_nan_cannot_be_inverted():
    with pytest.raises(TrainingError, match="is NaN or has run away"):
        inverse_factor(torch.full((2, 2), torch.nan), 1e-4)


@pytest.mark.parametrize("smallest", [0.5e-4, -0.5e-3, -0.05])
def test_all_jitters_at_once_give_what_one_after_another_do(smallest):
    covariance = torch.diag(torch.tensor([1.0, 2.0, smallest])).double()
    found = _factor_on_device(covariance, torch.eye(3).double(), 1e-4)
    assert torch.allclose(found, jittered_cholesky(covariance, 1e-4), atol=1e-14)


@pytest.mark.parametrize("worst", [-0.11, torch.nan])
def test_none_that_will_do_is_nan(worst):
    covariance = torch.diag(torch.tensor([1.0, worst])).double()
    assert _factor_on_device(covariance, torch.eye(2).double(), 1e-4).isnan().all()


def test_result_in_another_dtype_is_the_exact_one_rounded():
    covariance = (root(5) @ root(5).T).float().requires_grad_()
    exact = inverse_factor(covariance, 1e-3)
    single = inverse_factor(covariance, 1e-3, torch.float32)
    assert torch.equal(single, exact.float())
    weights = root(5, seed=1).float()
    (found,) = torch.autograd.grad(single, covariance, weights)
    (expected,) = torch.autograd.grad(exact, covariance, weights.double())
    assert torch.equal(found, expected)


# The kernels: (covariance, jitter, upstream gradient).


def rbf(inputs):
    return (-0.5 * torch.cdist(inputs, inputs).square()).exp()


def near_duplicates(size, dtype=torch.float64):
    # Points in pairs a millionth apart: without jitter the condition number exceeds 1e12.
    inputs = root(size)[:, :2]
    inputs[size // 2 :] = inputs[: size - size // 2] + 1e-6 * root(size, seed=2)[: -(size // 2), :2]
    return (100 * rbf(inputs)).to(dtype)


def covariances():
    cases = {f"of {size}": (root(size) @ root(size).T, 1e-3) for size in (1, 2, 5, 16, 17, 33)}
    cases["of 80"] = (rbf(root(80)[:, :3]), 1e-4)
    cases["of 80, single precision"] = (rbf(root(80)[:, :3].float()), 1e-4)
    cases["near-duplicates"] = (near_duplicates(30), 1e-2)
    cases["near-duplicates, single precision"] = (near_duplicates(30, torch.float32), 1e-2)
    cases["half precision"] = (torch.eye(5).half() + 1, 1e-3)
    cases["more than float32 could tell apart"] = (torch.ones(3, 3), 1e-8)
    cases["huge"] = (1e200 * (torch.eye(3).double() + 1), 1e-4)
    cases["tiny"] = (1e-200 * (torch.eye(3).double() + 1), 1e-204)
    for number, smallest in enumerate([0.5e-4, -0.5e-3, -0.05]):  # the jitter must rise
        cases[f"jitter raised {number}"] = (torch.diag(torch.tensor([1, 2, smallest])), 1e-4)
    # It fails in the second block of rows, when the first is written already.
    late = root(20) @ root(20).T
    late[18, 18] -= 1e-2 + 1 / torch.linalg.inv(late)[18, 18]
    cases["jitter raised late"] = (late, 1e-3)
    above = root(4) @ root(4).T + torch.triu(torch.full((4, 4), torch.nan), 1).double()
    cases["nothing above the diagonal"] = (above, 1e-3)
    return {
        name: (covariance, jitter, root(len(covariance), seed=1))
        for name, (covariance, jitter) in cases.items()
    }


def none_that_will_do():
    cases = {"far from definite": torch.diag(torch.tensor([1.0, -0.11]))}
    for size, position in [(3, (0, 0)), (3, (2, 2)), (17, (16, 3))]:
        cases[f"NaN at {position}"] = torch.eye(size).double()
        cases[f"NaN at {position}"][position] = torch.nan
    return {name: (covariance, 1e-4, None) for name, covariance in cases.items()}


def on_kernels(covariance, jitter, gradient):
    cholesky._fits = lambda _: True
    covariance.requires_grad_()
    inverse = inverse_factor(covariance, jitter)
    own = inverse_factor(covariance, jitter, covariance.dtype)
    if gradient is None:
        return inverse.detach(), own.detach()
    of_inverse = torch.autograd.grad(inverse, covariance, gradient, retain_graph=True)
    # In the dtype of the covariance; and laid out otherwise, as that of a transpose or a sum is.
    of_own = torch.autograd.grad(own, covariance, gradient.to(own.dtype).T.contiguous().T)
    of_sum = torch.autograd.grad(inverse.sum(), covariance)
    of_transpose = inverse_factor(covariance.detach().T.contiguous().T, jitter)
    return inverse.detach(), own.detach(), *of_inverse, *of_own, *of_sum, of_transpose


@pytest.fixture(scope="module")
def found_by_kernels(tmp_path_factory):
    cases = covariances() | none_that_will_do()
    folder = tmp_path_factory.mktemp("inverses")
    return run_kernels("tests.gpu.test_cholesky:on_kernels", cases, folder)


def relative_error(found, expected):
    return float((found.double() - expected).abs().max() / expected.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", covariances())
def test_kernels_give_inverse_and_gradient_of_torchs_factor(found_by_kernels, name):
    covariance, jitter, gradient = covariances()[name]
    exact = covariance.double().requires_grad_()
    identity = torch.eye(len(exact)).double()
    shifted = [exact + jitter * 10**attempt * identity for attempt in range(4)]
    matrix = next(m for m in shifted if not torch.linalg.cholesky_ex(m).info)
    expected = torch.linalg.inv(torch.linalg.cholesky(matrix))
    # No algorithm can be more precise than the conditioning allows.
    lower = matrix.detach().tril()
    tolerance = 1e-14 * max(1e2, float(torch.linalg.cond(lower + lower.tril(-1).mT)))
    inverse, own, of_inverse, of_own, of_sum, of_transpose = found_by_kernels[name]
    assert inverse.dtype == torch.float64
    assert torch.equal(inverse, inverse.tril())
    assert relative_error(inverse, expected.detach()) < tolerance
    assert own.dtype == covariance.dtype
    assert torch.equal(own, inverse.to(own.dtype))
    assert torch.equal(of_transpose, inverse)
    (by_torch,) = torch.autograd.grad(expected, exact, gradient, retain_graph=True)
    (sum_by_torch,) = torch.autograd.grad(expected.sum(), exact)
    rounding = torch.finfo(covariance.dtype).eps
    assert of_inverse.dtype == covariance.dtype
    assert relative_error(of_inverse, by_torch) < max(tolerance, rounding)
    # What comes in is rounded, too.
    assert relative_error(of_own, by_torch) < max(tolerance, 1e2 * rounding)
    assert relative_error(of_sum, sum_by_torch) < max(tolerance, rounding)


@pytest.mark.slow
@pytest.mark.parametrize("name", none_that_will_do())
def test_kernels_give_nan_where_no_jitter_will_do(found_by_kernels, name):
    for found in found_by_kernels[name]:
        assert found.isnan().all()


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("dtype", "to", "known", "width"),
    [
        ("fp32", "fp32", PLAIN, 16),
        ("fp32", "fp32", PLAIN, 128),
        ("fp64", "fp64", TRANSPOSED, 128),
        ("fp32", "bf16", PLAIN, 16),
        ("fp64", "fp16", {}, 128),
    ],
)
def test_programs_compile_for_a_gpu(dtype, to, known, width):
    own = {"covariance": f"*{dtype}", "gradient": f"*{dtype}", "rounded": f"*{to}"}
    tile = {"BLOCK": 16, "WIDTH": width, "JITTER": 1e-4, **known}
    for program, out in [
        (cholesky.inverse_factor_program, None),
        (cholesky.inner_gradient_program, "*fp64"),
        (cholesky.outer_gradient_program, f"*{to}"),
    ]:
        kernel = compile_program(program, {**DOUBLES, **own, "out": out}, tile)
        # Products in double precision, on the tensor cores.
        assert ".f64.f64.f64.f64" in kernel.asm["ptx"]
        assert kernel.metadata.shared <= MOST_SHARED


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_the_jitter_is_not_rounded_to_single_precision():
    pointers = {**DOUBLES, "covariance": "*fp64", "rounded": "*fp64"}
    tile = {"BLOCK": 16, "WIDTH": 16, "JITTER": 0.1, **PLAIN}
    kernel = compile_program(cholesky.inverse_factor_program, pointers, tile)
    assert "0x3fb999999999999a" in kernel.asm["ptx"].lower() or (
        "0d3fb999999999999a" in kernel.asm["ptx"].lower()
    )
