"""A torchvision that does not fit torch is made importable.

Package indexes serve torchvision as a CUDA build, whose operators cannot be loaded beside a torch
for the CPU: ``import torchvision`` then stops with "operator torchvision::nms does not exist", and
with it everything that imports torchvision in passing (torchmetrics, and so Lightning, and timm).
Only detection needs those operators. Declared without an implementation, they let the import
through; transforms and models then work.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

__all__ = ["mend_torchvision"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[object] = []
"""Declarations last as long as the object that made them."""


def mend_torchvision() -> None:
    """Import torchvision where it is installed, with its operators declared where it must be.

    Call this before anything that may import torchvision.
    """
    if "torchvision" in sys.modules or find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _forget("torchvision")
        _declare_operators()
        import_module("torchvision")


def _forget(package: str) -> None:
    """Drop what an interrupted import left behind."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]


def _declare_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
