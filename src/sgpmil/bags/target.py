"""Targets: the meaning of a label and of a model's outputs.

A `Target` knows what a slide's label is, how many outputs a model has for it, what each of them
is called and how they become a prediction. Models, metrics and pages ask it; they do not assume
class indices. A further kind of label (survival, multi-label, regression) is one more
subclass here, with its likelihood in `sgpmil.models.likelihood` and its metrics in
`sgpmil.evaluation`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sgpmil.bags.class_scales import find_scale
from sgpmil.bags.tables import listed
from sgpmil.errors import LabelError
from sgpmil.shapes import Float, Int

Label: TypeAlias = int
"""The label of a slide as models use it: a class index."""

_ABSENCE = re.compile(
    r"normal|negative|neg|benign|control|healthy|absent|none|nc|wt|wildtype|false|no|non|not|"
    r"without|nontumou?r|nonmutated|unmutated"
)


@dataclass(frozen=True, slots=True)
class Target(ABC):
    """The quantity that is predicted for a slide.

    Args:
        names: Name of each output of a model; none where labels are unknown.
    """

    names: tuple[str, ...] = ()

    kind: ClassVar[str]
    """Name of the kind of target, as files store it."""

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model."""
        return len(self.names)

    @property
    @abstractmethod
    def ranked(self) -> tuple[int, ...]:
        """Outputs that a metric of one output against the others (an AUC) averages over."""

    @abstractmethod
    def encode(self, text: str) -> Label:
        """Return the label that a table's text stands for.

        Raises:
            LabelError: The text is no label of this target.
        """

    @abstractmethod
    def decode(self, label: Label) -> str:
        """Return a label in words."""

    @abstractmethod
    def predicted(self, probs: Float[np.ndarray, "n C"]) -> Int[np.ndarray, " n"]:
        """Return the label that each slide's outputs predict."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the target in words, for messages."""

    def to_json(self) -> dict[str, Any]:
        """Return the target as `read_target` reads it."""
        return {"kind": self.kind, "names": list(self.names)}


@dataclass(frozen=True, slots=True)
class ClassTarget(Target):
    """One of several classes that exclude each other; a label is the index of a class.

    Raises:
        LabelError: A class is named twice.

    Example:
        >>> target = ClassTarget(("normal", "tumor"))
        >>> target.encode("tumor"), target.decode(0), target.ranked
        (1, 'normal', (1,))
        >>> str(target)
        'the classes normal, tumor'
    """

    kind: ClassVar[str] = "class"

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            raise LabelError(
                f"Expected each class once, but got {', '.join(self.names)}. "
                "Remove the repeated one."
            )

    @staticmethod
    def numbered(num_classes: int) -> "ClassTarget":
        """Return classes that are named by their index."""
        return ClassTarget(tuple(str(index) for index in range(num_classes)))

    @staticmethod
    def of(
        labels: Iterable[str], classes: Sequence[str] | None = None, *, ordinal: bool = False
    ) -> "ClassTarget":
        """Return the classes of labels in the order of `class_order`.

        Args:
            labels: The labels of the slides.
            classes: The order to keep.
            ordinal: Whether the order means something; then it must be given or known.

        Raises:
            LabelError: The given order repeats a class or lacks one; or the classes are ordered,
                and their order is neither given nor known.
        """
        found = set(labels)
        if ordinal and classes is None and len(found) > 1:
            _require_scale(found)
        kind = OrdinalTarget if ordinal else ClassTarget
        return kind(class_order(found, classes))

    @property
    def ranked(self) -> tuple[int, ...]:
        """The second of two classes, which is the positive one; every class of several."""
        if self.num_outputs < 2:
            return ()
        return (1,) if self.num_outputs == 2 else tuple(range(self.num_outputs))

    def encode(self, text: str) -> Label:
        """Return the index of a class.

        Raises:
            LabelError: There is no such class.
        """
        if text not in self.names:
            raise _unknown_labels([text], self.names)
        return self.names.index(text)

    def decode(self, label: Label) -> str:
        """Return the name of a class."""
        return self.names[label]

    def predicted(self, probs: Float[np.ndarray, "n C"]) -> Int[np.ndarray, " n"]:
        """Return the most probable class of each slide."""
        return probs.argmax(axis=1)

    def __str__(self) -> str:
        return f"the classes {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class OrdinalTarget(ClassTarget):
    """One of several classes in an order, such as grades, from the lowest to the highest.

    Models take it for classes: their outputs are a softmax, which does not know the order, and the
    predicted class is the most probable one. Metrics do know it: the quadratic kappa and the mean
    absolute error of grades are defined for this kind alone.

    Example:
        >>> str(OrdinalTarget(("NC", "G1", "G2")))
        'the ordered classes NC < G1 < G2'
    """

    kind: ClassVar[str] = "ordinal"

    def __str__(self) -> str:
        return f"the ordered classes {' < '.join(self.names)}"


_KINDS: dict[str, type[Target]] = {kind.kind: kind for kind in (ClassTarget, OrdinalTarget)}


def read_target(content: Mapping[str, Any]) -> Target:
    """Read the target of a file's content: its entry ``target``, or ``class_names`` in old files.

    Raises:
        KeyError: There is neither.
        ValueError: The target is of a kind that this version does not have.

    Example:
        >>> read_target({"class_names": ["no", "yes"]}) == ClassTarget(("no", "yes"))
        True
    """
    if "target" not in content:
        return ClassTarget(tuple(str(name) for name in content["class_names"]))
    stored = content["target"]
    if stored["kind"] not in _KINDS:
        raise ValueError(f"the target '{stored['kind']}' instead of {', '.join(_KINDS)}")
    return _KINDS[stored["kind"]](tuple(str(name) for name in stored["names"]))


def class_order(labels: Iterable[str], classes: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the names of the classes in the order of their indices.

    Without a given order, numbers are ordered by value, three or more names on a known scale
    (`find_scale`: grades, stages) from the lowest to the highest, and other names alphabetically,
    except that a name that means absence (normal, negative, no_..., wild type) comes first.

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
        >>> class_order(["MT", "AT", "BT"])
        ('BT', 'AT', 'MT')
    """
    found = set(labels)
    if classes is None:
        if _are_numbers(found):
            return tuple(sorted(found, key=_number_key))
        scale = find_scale(found)
        if scale is not None and len(found) > 2:
            return scale.names
        return tuple(sorted(found, key=_name_key))
    names = ClassTarget(tuple(classes)).names
    unknown = sorted(found - set(names))
    if unknown:
        raise _unknown_labels(unknown, names)
    return names


def encode_classes(
    labels: Sequence[Any] | NDArray[Any] | Tensor,
    names: Sequence[str] | None,
    *,
    ordinal: bool = False,
) -> tuple[tuple[Label | None, ...], ClassTarget]:
    """Turn labels of any type into class indices, and return their target too.

    Args:
        labels: A class index each where `names` are given, otherwise any number or text; None
            where unknown.
        names: Name of each class.
        ordinal: Whether the classes have an order.

    Raises:
        LabelError: A label is not among the classes, or not a whole number; or the order of ordered
            classes is not known.
    """
    values = [v.item() if hasattr(v, "item") else v for v in labels]
    known = [v for v in values if v is not None]
    if names is not None and all(isinstance(v, int | float) for v in known):
        target = ClassTarget.of((), names, ordinal=ordinal)
        wrong = [v for v in known if v not in range(target.num_outputs)]
        if wrong:
            raise LabelError(
                f"Expected labels from 0 to {len(names) - 1}, the index of one of "
                f"{len(names)} classes, but got {wrong[0]}. Correct it, or name more classes."
            )
        return tuple(None if v is None else int(v) for v in values), target
    target = ClassTarget.of([_label_text(v) for v in known], names, ordinal=ordinal)
    indices = (None if v is None else target.encode(_label_text(v)) for v in values)
    return tuple(indices), target


def _require_scale(labels: set[str]) -> None:
    """Refuse classes whose order is not known.

    Raises:
        LabelError: They are on no known scale, or two of them have one rank.
    """
    if _are_numbers(labels):
        return
    scale = find_scale(labels)
    if scale is None:
        raise LabelError(
            f"Expected classes of a known order, but got {listed(sorted(labels))}. Give them from "
            "the lowest to the highest as `classes`."
        )
    if scale.equals:
        raise LabelError(
            f"Expected one class a rank, but got {listed(scale.equals)}, which mean the same. Join "
            "them in the table, or give the order as `classes`."
        )


def _are_numbers(labels: Iterable[str]) -> bool:
    return all(re.fullmatch(r"[+-]?\d+(\.\d+)?", label) for label in labels)


def _number_key(label: str) -> tuple[float, str]:
    return float(label), label


def _name_key(label: str) -> tuple[bool, str, str]:
    words = re.split(r"[\s_\-]+", label.casefold())
    means_absence = _ABSENCE.fullmatch(words[0]) or _ABSENCE.fullmatch("".join(words))
    return means_absence is None, label.casefold(), label


def _label_text(value: Any) -> str:
    if str(value).casefold() == "nan":
        raise LabelError("Expected a class as a label, but got NaN. Give None where it is unknown.")
    if isinstance(value, float) and not value.is_integer():
        raise LabelError(f"Expected a class as a label, but got {value}. Give whole numbers.")
    return str(int(value)) if isinstance(value, int | float) else str(value)


def _unknown_labels(unknown: Sequence[str], names: Sequence[str]) -> LabelError:
    return LabelError(
        f"Expected labels among the classes {', '.join(names)}, but got {listed(tuple(unknown))}. "
        "Add them to the classes, or take their slides out of the table."
    )
