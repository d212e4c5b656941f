"""Time of a study; measured."""

from typing import Any

_ORDER = {"agp": 130, "transmil": 100, "dgrmil": 130, "mixmil": 50, "bayesmil": 30, "clam-sb": 15}


def fold_seconds(plan: Any, row: Any, device: str) -> float:
    """Estimate the seconds of a fold."""
    return float(_ORDER.get(row.model, 3))
