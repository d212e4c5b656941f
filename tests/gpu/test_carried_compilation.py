"""The kernels compile for a GPU, which no GPU is needed for, and fit into it."""

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from sgpmil.gpu import carried_kernels, carried_programs  # noqa: E402

pytestmark = pytest.mark.slow

HOPPER = GPUTarget("cuda", 90, 32)
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
    "few": (carried_kernels._DRAW, carried_kernels._GRADIENT),
    "many": (carried_kernels._DRAW_MANY, carried_kernels._GRADIENT_MANY),
}


def compiled(program, rows, constants, num_warps, num_stages=2):
    known = {name: value for name, value in constants.items() if name in program.arg_names}
    pointers = {"x": f"*{rows}", "x_grad": f"*{rows}", "jitter": "fp32"}
    types = {
        name: "constexpr"
        if name in known
        else "i32"
        if name in NUMBERS
        else pointers.get(name, "*fp32")
        for name in program.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(program.arg_names)
        if types[name].startswith("*") or name.endswith("stride")
    }
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return triton.compile(ASTSource(program, types, known, aligned), target=HOPPER, options=options)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("number", TILES)
@pytest.mark.parametrize(
    ("size", "rows"), [("usual", "bf16"), ("small", "fp32"), ("largest", "fp32")]
)
def test_draws_and_their_gradients_compile(size, rows, number):
    constants = {"FLOOR": 1e-6, "LINEAR": True, "PRECISION": carried_kernels._PRECISION}
    if size == "small":
        constants |= {"LINEAR": False, "weight": None, "bias": None}
    programs = carried_programs.draw_program, carried_programs.draw_gradient_program
    for program, tile in zip(programs, TILES[number], strict=True):
        cut = {"ROWS": tile.rows, "CHUNK": tile.chunk}
        sizes = SIZES[size] | constants | cut
        kernel = compiled(program, rows, sizes, tile.num_warps, tile.num_stages)
        assert kernel.metadata.shared <= SHARED_MEMORY
        # On the tensor cores: as plain products they would spill what the registers do not hold.
        assert "mma" in kernel.asm["ptx"]


@pytest.mark.parametrize(
    ("size", "rows"), [("usual", "bf16"), ("small", "fp32"), ("largest", "fp32")]
)
def test_products_and_sums_compile(size, rows):
    block = min(carried_kernels._PART_BLOCK, SIZES[size]["POINTS"])
    constants = {"ROWS": carried_kernels._PART_ROWS, "TILE": 16, "TILES": 32, "BLOCK": block}
    constants |= SIZES[size] | {"PRECISION": carried_kernels._PRECISION}
    products = compiled(carried_programs.products_program, rows, constants, 8)
    assert products.metadata.shared <= SHARED_MEMORY
    assert "mma" in products.asm["ptx"]
    summed = {"WIDTH": 100, "ROWS": 64, "COLUMNS": 32}
    sums = compiled(carried_programs.sums_program, rows, summed, 4)
    assert "sums_program" in sums.asm["ptx"]
