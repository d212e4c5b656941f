"""The kernels compile for a GPU, which no GPU is needed for: the interpreter takes more."""

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from sgpmil.gpu.adam_programs import norm_program, update_program  # noqa: E402
from tests.gpu.test_kernel_compilation import compiled  # noqa: E402

pytestmark = pytest.mark.slow

TABLES = {"table": "*i64", "chunk_tensors": "*i64", "chunk_starts": "*i64", "partials": "*fp32"}
NUMBERS = ("clip", "weight_decay", "eps", "beta2", "rest1", "rest2", "log_beta1", "log_beta2")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("clipped", [True, False])
def test_adam_compiles(decoupled, clipped):
    types = TABLES | dict.fromkeys(NUMBERS, "fp32") | {"rate": "*fp32"}
    constants = {"CHUNK": 2048, "CHUNKS": 512, "DECOUPLED": decoupled, "CLIPPED": clipped}
    assert "norm_program" in compiled(norm_program, types, constants).asm["ptx"]
    assert "update_program" in compiled(update_program, types, constants).asm["ptx"]
