"""Signs that a column of labels holds classes, or something else.

Tables hold ages, survival times and names beside classes, and any of them reads as text. Training
would take each value for a class of its own.
"""

import math
import re
from collections.abc import Sequence

_MOST_CLASSES = 20
_FEW = 5
_LEAST_SLIDES = 4
"""Slides that a class has in the mean, where there are more than `_FEW` classes."""

_SURVIVAL = re.compile(
    r"(^|_)(os|pfs|dfs|dss|rfs|efs|pfi|dfi|ttp)(_|$)|surviv|(^|_)(months|days|years|time)(_|$)|follow"
)


def plain_numbers(labels: Sequence[str]) -> tuple[str, ...]:
    """Write whole numbers without a point, where all labels are numbers: 1.0 is the class 1.

    Example:
        >>> plain_numbers(["1", "1.0", "0"]), plain_numbers(["1.0", "low"])
        (('1', '1', '0'), ('1.0', 'low'))
    """
    values = _numbers(labels)
    if values is None:
        return tuple(labels)
    return tuple(
        str(int(value)) if value.is_integer() else label
        for value, label in zip(values, labels, strict=True)
    )


def spelt_as(labels: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """Spell labels that are a class, or the same number as one, as the classes are spelt.

    Example:
        >>> spelt_as(["1", "0.0", "low"], ["0.0", "1.0"])
        ('1.0', '0.0', 'low')
    """
    known = {plain_numbers([name])[0]: name for name in classes} | {c: c for c in classes}
    return tuple(known.get(label, known.get(plain_numbers([label])[0], label)) for label in labels)


def doubt_of_classes(labels: Sequence[str], column: str = "") -> str:
    """Say why labels do not look like classes; empty where they do.

    They do not where there are more than twenty different ones, or more than five of which most
    have fewer than four slides, or where they are fractions or numbers in a column of times, or
    where two differ in capitals or spaces alone.

    Args:
        labels: The label of each slide, by `plain_numbers`.
        column: Name of their column.

    Example:
        >>> doubt_of_classes(["0", "1", "1", "0"], "label")
        ''
        >>> doubt_of_classes([str(40 + n) for n in range(30)], "age")
        '30 different numbers for 30 slides look like a measurement (regression)'
    """
    spellings: dict[str, str] = {}
    for label in dict.fromkeys(labels):
        other = spellings.setdefault(" ".join(label.casefold().split()), label)
        if other != label:
            return f"'{other}' and '{label}' differ in capitals or spaces alone"
    different = len(set(labels))
    values = _numbers(labels)
    key = re.sub(r"[\s\-.]+", "_", column.casefold())
    is_time = values is not None and different > 2 and _SURVIVAL.search(key) is not None
    has_fractions = values is not None and not all(value.is_integer() for value in values)
    are_many = different > _MOST_CLASSES or (
        different > _FEW and different * _LEAST_SLIDES > len(labels)
    )
    if not (is_time or are_many or (has_fractions and different > 2)):
        return ""
    kind = "numbers" if values is not None else "texts"
    looks = "names or free text"
    if values is not None:
        looks = "times (survival)" if is_time else "a measurement (regression)"
    return f"{different} different {kind} for {len(labels)} slides look like {looks}"


def _numbers(labels: Sequence[str]) -> list[float] | None:
    """Return labels as finite numbers; None where one is not."""
    try:
        values = [float(label) for label in labels]
    except ValueError:
        return None
    return values if values and all(map(math.isfinite, values)) else None
