"""Numbers, metrics and settings as text."""

import math
from collections.abc import Sequence
from typing import Any

from sgpmil.evaluation.metrics import METRICS

_DASH = "–"


def format_number(value: float, digits: int = 3) -> str:
    """Write a number; a dash where it is undefined.

    Example:
        >>> format_number(0.12345), format_number(-2.0, 1), format_number(float("nan"))
        ('0.123', '−2.0', '–')
    """
    if math.isnan(value):
        return _DASH
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # never −0.000


def format_range(low: float, high: float, digits: int = 3) -> str:
    """Write an interval; a dash where it is undefined."""
    if math.isnan(low) or math.isnan(high):
        return _DASH
    return f"{format_number(low, digits)}–{format_number(high, digits)}"


def format_mean(values: Sequence[float], digits: int = 3) -> str:
    """Write the mean of the values that are defined; a dash without any."""
    defined = [value for value in values if not math.isnan(value)]
    return format_number(math.fsum(defined) / len(defined), digits) if defined else _DASH


def metric_name(name: str) -> str:
    """Name a metric at the start of a cell or a sentence.

    Example:
        >>> metric_name("balanced_accuracy"), metric_name("auc")
        ('Balanced accuracy', 'AUC')
    """
    words = METRICS[name].name
    return words[0].upper() + words[1:]


def setting_text(value: Any) -> str:
    """Write the value of a setting.

    Example:
        >>> setting_text(True), setting_text([768, 384]), setting_text(1e-05)
        ('yes', '768, 384', '1e-05')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(part) for part in value)
    return str(value)
