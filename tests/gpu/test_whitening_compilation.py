"""The whitening kernels compile for a GPU, which no GPU is needed for."""

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")


from sgpmil.gpu import whitening_programs  # noqa: E402
from tests.gpu.test_kernel_compilation import compiled  # noqa: E402

pytestmark = pytest.mark.slow

MOST_SHARED = 99 * 1024  # bytes that a program may have on every GPU with bfloat16
DOUBLES = dict.fromkeys(["inverse", "inner"], "*fp64")
PLAIN = {"stride_column": 1}
TRANSPOSED = {"stride_row": 1}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("width", [16, 128])
@pytest.mark.parametrize(
    ("dtype", "to", "known"),
    [
        ("fp32", "fp32", PLAIN),
        ("fp64", "fp64", TRANSPOSED),
        ("fp32", "bf16", PLAIN),
        ("fp64", "fp16", {}),
    ],
)
def test_whitening_compiles(dtype, to, known, width):
    own = {"covariance": f"*{dtype}", "gradient": f"*{dtype}", "rounded": f"*{to}"}
    tile = {"BLOCK": 16, "WIDTH": width, "JITTER": 1e-4, **known}
    for program, out in [
        (whitening_programs.inverse_factor_program, None),
        (whitening_programs.inner_gradient_program, "*fp64"),
        (whitening_programs.outer_gradient_program, f"*{to}"),
    ]:
        kernel = compiled(program, {**DOUBLES, **own, "out": out}, tile)
        assert program.__name__ in kernel.asm["ptx"]
        # Products in double precision, on the tensor cores.
        assert ".f64.f64.f64.f64" in kernel.asm["ptx"]
        assert kernel.metadata.shared <= MOST_SHARED


def test_the_jitter_is_not_rounded_to_single_precision():
    pointers = {**DOUBLES, "covariance": "*fp64", "rounded": "*fp64"}
    tile = {"BLOCK": 16, "WIDTH": 16, "JITTER": 0.1, **PLAIN}
    kernel = compiled(whitening_programs.inverse_factor_program, pointers, tile)
    assert "0x3fb999999999999a" in kernel.asm["ptx"].lower() or (
        "0d3fb999999999999a" in kernel.asm["ptx"].lower()
    )
