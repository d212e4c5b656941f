"""Number formats of dense layers."""

from contextlib import AbstractContextManager

import torch

from sgpmil.errors import SettingsError
from sgpmil.models.contract import MILModel
from sgpmil.models.embedding import InstanceLinear

PRECISIONS = ("auto", "32", "64", "bf16", "16")
_HALF = {"bf16": torch.bfloat16, "16": torch.float16}


def resolve_precision(precision: str, device: torch.device) -> str:
    """Replace ``auto`` by ``bf16`` on GPUs that have bfloat16, and by ``32`` elsewhere.

    Raises:
        SettingsError: There is no such precision.

    Example:
        >>> resolve_precision("auto", torch.device("cpu"))
        '32'
    """
    if precision not in PRECISIONS:
        raise SettingsError(
            f"Expected precision to be one of {', '.join(PRECISIONS)}, but got '{precision}'."
        )
    if precision != "auto":
        return precision
    has_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if has_bf16 else "32"


def dense_arithmetic(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which dense layers are computed in a precision."""
    half = _HALF.get(precision)
    return torch.autocast(device.type, half, enabled=half is not None)


def features_dtype(model: MILModel, precision: str) -> torch.dtype:
    """Return the number format in which a model takes features from `Standardise.take`.

    It is half precision only for models with `InstanceLinear` layers, because other layers may need
    more.
    """
    is_half = precision == "bf16" and any(isinstance(m, InstanceLinear) for m in model.modules())
    return torch.bfloat16 if is_half else model.standardise.mean.dtype
