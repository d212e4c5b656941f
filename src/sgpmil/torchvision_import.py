"""Import of a torchvision that does not fit torch.

Package indexes serve torchvision as a CUDA build, whose operators cannot be loaded beside a torch
for the CPU: ``import torchvision`` then stops with "operator torchvision::nms does not exist", and
with it everything that imports torchvision in passing (torchmetrics, and so Lightning, and timm).
Only detection needs those operators. Declared without an implementation, they let the import
through; transforms and models then work.
"""

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[object] = []
"""Declarations last as long as the object that made them."""


def mend_torchvision() -> None:
    """Make torchvision importable where it is installed, without importing it (that takes 2 s).

    Call this before anything that may import torchvision.
    """
    spec = find_spec("torchvision") if "torchvision" not in sys.modules else None
    if spec is None or spec.origin is None or _declared:
        return
    if not _operators_load(Path(spec.origin).parent):
        _declare_operators()


def torchvision_fits() -> bool:
    """Return whether the operators of an installed torchvision can be loaded beside this torch."""
    spec = find_spec("torchvision")
    return spec is None or spec.origin is None or _operators_load(Path(spec.origin).parent)


def _operators_load(package: Path) -> bool:
    """Load the operators as torchvision does, and say whether they could be."""
    import torch

    files = [package / f"_C{suffix}" for suffix in EXTENSION_SUFFIXES]
    library = next((file for file in files if file.exists()), None)
    if library is None:
        return False
    try:
        torch.ops.load_library(library)
    except OSError:
        return False
    return True


def _declare_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):  # declared by others
            library.define(schema)
    _declared.append(library)
