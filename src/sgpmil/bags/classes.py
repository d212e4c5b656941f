"""The order of the classes, which fixes what class index 0 and 1 mean."""

import re
from collections.abc import Iterable

from sgpmil.bags.tables import listed
from sgpmil.errors import LabelError

__all__ = ["class_order"]

_ABSENCE = frozenset(
    [
        "normal",
        "negative",
        "neg",
        "benign",
        "control",
        "healthy",
        "absent",
        "none",
        "nc",
        "wt",
        "wildtype",
        "false",
        "no",
        "non",
        "not",
        "without",
        "nontumor",
        "nontumour",
        "nonmutated",
        "unmutated",
    ]
)


def class_order(
    labels: Iterable[str], classes: tuple[str, ...] | list[str] | None = None
) -> tuple[str, ...]:
    """Return the names of the classes in the order of their indices.

    Without a given order, numbers are ordered by value and names alphabetically, except that a
    name that means absence (normal, negative, no_..., wild type) comes first.

    Args:
        labels: The labels of the slides.
        classes: The order to keep; it may name classes that no slide has.

    Raises:
        LabelError: The given order repeats a class or lacks one.

    Example:
        >>> class_order(["epithelium", "no_epithelium"])
        ('no_epithelium', 'epithelium')
        >>> class_order(["10", "9", "10"])
        ('9', '10')
    """
    found = set(labels)
    if classes is None:
        return tuple(sorted(found, key=_number if all(map(_is_number, found)) else _name_key))
    if len(set(classes)) < len(classes):
        raise LabelError(
            f"Expected each class once, but got {', '.join(classes)}. Remove the repeated one."
        )
    unknown = sorted(found - set(classes))
    if unknown:
        raise LabelError(
            f"Expected labels among the classes {', '.join(classes)}, but got {listed(unknown)}. "
            "Add them to the classes, or take their slides out of the table."
        )
    return tuple(classes)


def _is_number(label: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d+)?", label) is not None


def _number(label: str) -> tuple[float, str]:
    return float(label), label


def _name_key(label: str) -> tuple[bool, str, str]:
    words = re.split(r"[\s_\-]+", label.casefold())
    means_absence = words[0] in _ABSENCE or "".join(words) in _ABSENCE
    return not means_absence, label.casefold(), label
