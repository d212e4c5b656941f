"""The order of the classes, which fixes what class index 0 and 1 mean."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from sgpmil.bags.tables import listed
from sgpmil.errors import LabelError

__all__ = ["class_indices", "class_order"]

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


def class_indices(
    labels: Sequence[Any] | NDArray[Any] | Tensor, class_names: Sequence[str] | None
) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
    """Turn labels into class indices and the names of the classes.

    Args:
        labels: A class index each where `class_names` are given, otherwise any number or text;
            None where unknown.
        class_names: Name of each class.

    Raises:
        LabelError: A label is not among the classes, or not a whole number.
    """
    values = [v.item() if hasattr(v, "item") else v for v in labels]
    given = None if class_names is None else tuple(class_names)
    numeric = all(isinstance(v, int | float) for v in values if v is not None)
    if given is not None and numeric:
        wrong = [v for v in values if v is not None and v not in range(len(given))]
        if wrong:
            raise LabelError(
                f"Expected labels from 0 to {len(given) - 1}, the index of one of "
                f"{len(given)} classes, but got {wrong[0]}. Correct it, or name more classes."
            )
        return tuple(None if v is None else int(v) for v in values), given
    texts = [None if v is None else _label_text(v) for v in values]
    names = class_order([text for text in texts if text is not None], given)
    return tuple(None if text is None else names.index(text) for text in texts), names


def _label_text(value: Any) -> str:
    if isinstance(value, float) and not value.is_integer():
        raise LabelError(f"Expected a class as a label, but got {value}. Give whole numbers.")
    return str(int(value)) if isinstance(value, int | float) else str(value)
