"""Every kernel compiles for a GPU, which no GPU is needed for: the interpreter takes more."""

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from sgpmil.gpu import pooling_programs, row_programs  # noqa: E402

pytestmark = pytest.mark.slow

HOPPER = GPUTarget("cuda", 90, 32)
SOFTMAX = pooling_programs.softmax_program, pooling_programs.softmax_gradient_program
GRADIENTS = (
    pooling_programs.pool_weights_gradient_program,
    pooling_programs.pool_embeddings_gradient_program,
)
# What is known when a kernel is compiled: contiguous rows, or rows of a single column.
PLAIN = {"stride_t": 1, "grad_stride_t": 1, "embeddings_stride_h": 1, "column_stride": 1}
NARROW = {**PLAIN, "width": 1, "embeddings_stride_t": 1, "source_stride": 1}
TRANSPOSED = {}


def compiled(program, pointers, constants):
    known = {name: value for name, value in constants.items() if name in program.arg_names}
    types = {
        name: "constexpr" if name in known else pointers.get(name, "i32")
        for name in program.arg_names
    }
    return triton.compile(ASTSource(program, types, known), target=HOPPER)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("known", [PLAIN, NARROW, TRANSPOSED])
@pytest.mark.parametrize(("sums", "rows"), [("fp32", "bf16"), ("fp32", "fp32"), ("fp64", "fp16")])
def test_pooling_compiles(sums, rows, known):
    tile = {"SAMPLES": 2, "ROWS": 32, "COLUMNS": 16, "STEPS": 3, **known}
    summed = dict.fromkeys(["values", "softmax", "weights", "grad", "out"], f"*{sums}")
    pointers = {**summed, "bounds": "*i64", "embeddings": f"*{rows}"}
    for program in (*SOFTMAX, pooling_programs.pool_program, *GRADIENTS):
        if program is pooling_programs.pool_embeddings_gradient_program:
            pointers["out"] = f"*{rows}"
        assert program.__name__ in compiled(program, pointers, tile).asm["ptx"]


@pytest.mark.parametrize("known", [PLAIN, NARROW, TRANSPOSED])
@pytest.mark.parametrize(("source", "out"), [("fp16", "bf16"), ("fp32", "fp32"), ("bf16", "fp64")])
def test_taking_rows_compiles(source, out, known):
    tile = {"ROWS": 32, "COLUMNS": 16, "STEPS": 3, **known}
    pointers = dict.fromkeys(["mean", "scale", "limit"], "*fp32")
    pointers |= {"source": f"*{source}", "starts": "*i64", "bounds": "*i64", "out": f"*{out}"}
    copied = {"STANDARDISED": False, "mean": None, "scale": None, "limit": None}
    for constants in ({"STANDARDISED": True}, copied):
        kernel = compiled(row_programs.rows_program, pointers, tile | constants)
        assert ("div.rn.f32" in kernel.asm["ptx"]) == constants["STANDARDISED"]
