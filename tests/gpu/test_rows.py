import subprocess
import sys

import pytest
import torch

from sgpmil.bags.segments import Segments
from sgpmil.errors import BagError
from sgpmil.gpu import rows as rows_module
from sgpmil.gpu.rows import rows_program, take_rows
from tests.gpu.kernel_process import compile_program, run_kernels

MODULE = "tests.gpu.test_rows"
HALF, BFLOAT, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def bounds_of(sizes):
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cases():
    """Give (source, starts, bounds, mean, scale, limit, dtype) by name."""
    shapes = {  # rows and width of the source, starts, sizes, its dtype, limit, the result's dtype
        "one row": (1, 1, [0], [1], SINGLE, 5.0, SINGLE),
        "any order": (20, 3, [15, 0, 7], [5, 1, 8], SINGLE, 1.0, SINGLE),
        "the same bag twice": (9, 2, [3, 3], [4, 4], SINGLE, torch.inf, SINGLE),
        "half to bfloat16": (20, 17, [15, 0], [5, 9], HALF, 0.5, BFLOAT),
        "bfloat16 to half": (20, 17, [15, 0], [5, 9], BFLOAT, 0.5, HALF),
        "half to single": (20, 64, [15, 0], [5, 9], HALF, torch.inf, SINGLE),
        "single to half": (20, 64, [15, 0], [5, 9], SINGLE, 2.0, HALF),
        "single to double": (20, 3, [15, 0], [5, 9], SINGLE, 2.0, DOUBLE),
        "filler beyond the source": (8, 5, [2, 6], [3, 9], SINGLE, 2.0, SINGLE),
        "filler from beyond the source": (8, 5, [2, 8], [3, 4], SINGLE, 2.0, SINGLE),
        "no filler": (8, 5, [2, 0, 8], [3, 4, 0], SINGLE, 2.0, SINGLE),
        "none but the last": (8, 5, [2, 0, 4], [0, 0, 3], SINGLE, 2.0, SINGLE),
        "wider than a block": (9, 1100, [4, 0], [3, 4], HALF, 2.0, BFLOAT),
        "many blocks of rows": (900, 8, [5, 0, 1], [600, 1, 899], SINGLE, 2.0, SINGLE),
    }
    made = {}
    for name, (rows, width, starts, sizes, dtype, limit, result) in shapes.items():
        source = (3.0 * normal(rows, width, seed=1)).to(dtype)
        bags = source, torch.tensor(starts), bounds_of(sizes)
        mean, scale = normal(width, seed=2), normal(width, seed=3).abs() + 0.1
        made[name] = (*bags, mean, scale, torch.tensor(limit), result)
        made[f"{name}, as they are"] = (*bags, None, None, None, result)
    source, starts, bounds = normal(5, 9, seed=4).T, torch.tensor([3, 0]), bounds_of([2, 4])
    moments = normal(5, 2, seed=5)[:, 0], normal(5, 2, seed=6).abs()[:, 0] + 1.0
    made["transposed"] = (source, starts, bounds, *moments, torch.tensor(3.0), SINGLE)
    huge, zeros = 1e30 * normal(9, 5, seed=4), torch.zeros(5)
    tiny = torch.full((5,), 1e-10)
    made["quotients overflow"] = (huge, starts, bounds, zeros, tiny, torch.tensor(9.0), SINGLE)
    made["infinite quotients"] = (huge, starts, bounds, zeros, tiny, torch.tensor(torch.inf), HALF)
    return made


def row_by_row(source, starts, bounds, mean, scale, limit, dtype):
    """Take the rows one at a time, in double precision."""
    rows = []
    for bag, start in enumerate(starts.tolist()):
        for i in range(int(bounds[bag + 1] - bounds[bag])):
            row = source[min(start + i, len(source) - 1)].double()
            if mean is not None:
                row = (row - mean.double()) / scale.double()
                row = row.clamp(-limit.double(), limit.double())
            rows.append(row)
    return torch.stack(rows)


def taken(source, starts, bounds, *rest):
    return take_rows(source, starts, Segments.of(bounds), *rest)


def taken_by_kernel(source, starts, bounds, *rest):
    rows_module.runs_triton = lambda _: True
    return take_rows(source, starts, Segments(bounds.cpu(), bounds), *rest)


@pytest.fixture(scope="module")
def by_kernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return run_kernels(f"{MODULE}:taken_by_kernel", cases(), folder)


@pytest.mark.parametrize("name", cases())
def test_rows_are_those_taken_one_at_a_time(name):
    case = cases()[name]
    result = taken(*case)
    expected = row_by_row(*case)
    assert result.dtype == case[-1]
    if "quotient" in name or "as they are" in name:
        # Exact: what is copied, what is clamped, and what overflows.
        assert torch.equal(result, expected.float().to(case[-1]))
    else:
        error = (result.double() - expected).abs()
        precision = max(torch.finfo(case[-1]).eps, torch.finfo(SINGLE).eps)
        assert (error <= 2 * precision * (1 + expected.abs())).all()


@pytest.mark.parametrize("name", cases())
def test_the_kernel_rounds_as_torch_does(by_kernel, name):
    expected = taken(*cases()[name])
    assert by_kernel[name].dtype == expected.dtype
    if expected.dtype == BFLOAT and not torch.cuda.is_available():
        # The interpreter cuts digits off where a GPU rounds.
        assert torch.allclose(by_kernel[name], expected, rtol=torch.finfo(BFLOAT).eps, atol=0.0)
    else:
        assert torch.equal(by_kernel[name], expected)


def test_no_gradient_flows():
    source, *rest = cases()["any order"]
    assert not taken(source.requires_grad_(), *rest).requires_grad


@pytest.mark.parametrize("missing", [3, 4, 5])
def test_moments_come_together(missing):
    case = list(cases()["any order"])
    case[missing] = None
    with pytest.raises(BagError, match="together, but one of them is missing"):
        taken(*case)


def test_without_a_gpu_triton_is_not_imported():
    script = """
import sys
import torch
from sgpmil.gpu.rows import take_rows
from sgpmil.bags.segments import Segments
from sgpmil.models.pooling import bag_softmax, pool
segments = Segments.of(torch.tensor([0, 2]))
rows = take_rows(torch.ones(2, 3), torch.tensor([0]), segments, None, None, None, torch.float32)
pool(bag_softmax(torch.ones(1, 2), segments), rows, segments)
assert not [name for name in sys.modules if name.split(".")[0] == "triton"]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Constants of a compilation: contiguous rows, rows of a single column, or neither.
PLAIN = {"column_stride": 1}
NARROW = {**PLAIN, "width": 1, "source_stride": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("known", [PLAIN, NARROW, {}])
@pytest.mark.parametrize(("source", "out"), [("fp16", "bf16"), ("fp32", "fp32"), ("bf16", "fp64")])
def test_program_compiles_for_a_gpu(source, out, known):
    tile = {"ROWS": 32, "COLUMNS": 16, "STEPS": 3, **known}
    pointers = dict.fromkeys(["mean", "scale", "limit"], "*fp32")
    pointers |= {"source": f"*{source}", "starts": "*i64", "bounds": "*i64", "out": f"*{out}"}
    copied = {"STANDARDISED": False, "mean": None, "scale": None, "limit": None}
    for constants in ({"STANDARDISED": True}, copied):
        kernel = compile_program(rows_program, pointers, tile | constants)
        assert ("div.rn.f32" in kernel.asm["ptx"]) == constants["STANDARDISED"]
