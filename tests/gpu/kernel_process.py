"""Triton kernels run in a process of their own.

Triton decides when it is imported whether it compiles or interprets. On a machine with a GPU the
process compiles, and the tests check what the GPU computes; elsewhere it interprets, on the CPU.
"""

import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run_kernels(function, cases, folder):
    """Call a function of a test module, by name ('module:function'), once for each case.

    Args:
        function: It takes the tensors of a case, and gives tensors back.
        cases: Arguments by the case's name.
        folder: Where they and the results are handed over.

    Returns:
        What the function gave, by the case's name, in the main memory.
    """
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed: the kernels cannot be run")
    given, found = folder / "cases.pt", folder / "results.pt"
    torch.save(cases, given)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    environment.pop("TRITON_INTERPRET", None)
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    arguments = [sys.executable, "-m", __name__, function, str(given), str(found)]
    done = subprocess.run(arguments, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(found)


def compile_program(program, pointers, constants, aligned=(), **options):
    """Compile a program for a Hopper GPU, which needs no GPU: the interpreter accepts more.

    Args:
        program: The program.
        pointers: Types of arguments by name; all others are 32-bit integers.
        constants: Values that are known when it is compiled.
        aligned: Names of arguments that are multiples of 16.
        options: Options of the compiler.
    """
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = program.compiled.arg_names
    known = {name: value for name, value in constants.items() if name in names}
    types = {name: "constexpr" if name in known else pointers.get(name, "i32") for name in names}
    divisible = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name in aligned and name not in known
    }
    source = ASTSource(program.compiled, types, known, divisible)
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert program.compiled.__name__ in kernel.asm["ptx"]
    return kernel


def _mend_interpreter():
    """Let the interpreter take bounds of loops from memory under every NumPy, and patch once.

    It keeps a number as an array of one entry, which NumPy no longer turns into an integer. And it
    looks through Triton's language at every call of a function, which takes most of its time: here
    it does so once for each module that has such functions, and leaves the language as it is then.
    """
    from triton.runtime import interpreter

    patch_tensor, patch = interpreter._patch_lang_tensor, interpreter._patch_lang
    patched = set()

    def patched_tensor(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def patch_once(function):
        module = function.__globals__["__name__"]
        if module not in patched:
            patched.add(module)
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang_tensor, interpreter._patch_lang = patched_tensor, patch_once


def _moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (tuple, list)):
        return tuple(_moved(v, device) for v in value)
    return value


def _main(function, given, found):
    device = "cpu" if os.environ.get("TRITON_INTERPRET") else "cuda"
    if device == "cpu":
        _mend_interpreter()
    module, name = function.split(":")
    call = getattr(import_module(module), name)
    cases = torch.load(given)
    results = {name: _moved(call(*_moved(case, device)), "cpu") for name, case in cases.items()}
    torch.save(results, found)


if __name__ == "__main__":
    _main(*sys.argv[1:])
