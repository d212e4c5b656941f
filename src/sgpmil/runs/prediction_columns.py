"""Which columns of a table are the slides, the patients, the labels and the probabilities.

============  ===============  ==========  ==============  ======================  ===========
table         slide            patient     label           probabilities           deviations
============  ===============  ==========  ==============  ======================  ===========
ours, plain   slide_id         case_id     label           p_0, p_1, …             std_0, …
CLAM          slide_id         –           Y               p_0, p_1, …             –
by name       slide_id         case_id     label (a name)  p_<class>, …            std_<class>
slideflow     slide            patient     y_true          y_pred0, y_pred1, …     uncertainty0, …
STAMP         PATIENT          PATIENT     <target>        <target>_<class>, …     –
============  ===============  ==========  ==============  ======================  ===========

The names of slideflow's columns may start with the outcome, as in ``subtype-y_true``. The
patient may also be in PATIENT or patient. A table of patients has no slides: there a row stands
for the patient. Labels are class indices, or names where the columns are named by class; blank
where unknown. Classes come in the order of their columns.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.shapes import Float

__all__ = ["BLANK", "ColumnRoles", "Columns", "column_roles", "labels_of", "numbers_of"]

Columns = Mapping[str, Sequence[Any]]
"""The values of each column, by its name."""

_PATIENT = ("case_id", "PATIENT", "patient")
BLANK = ("", "NA", "<NA>", "None", "nan", "NaN")


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """What each column of a table is.

    Args:
        slide: Column of the slides' names.
        patient: Column of the patients' names, where there is one.
        label: Column of the labels.
        probs: Column of each class's probability.
        stds: Column of each class's standard deviation; it may be missing.
        class_names: Name of each class where the labels are names, not indices.
    """

    slide: str
    patient: str | None
    label: str
    probs: tuple[str, ...]
    stds: tuple[str, ...]
    class_names: tuple[str, ...] | None = None


def column_roles(names: Sequence[str], where: str) -> ColumnRoles:
    """Say what each column is, from the names alone.

    Args:
        names: Names of the columns.
        where: What holds them, for the message.

    Raises:
        PredictionError: They are of no known table, or of several.
    """
    for recognise in (_plain, _slideflow, _stamp, _by_name):
        roles = recognise(names, where)
        if roles is not None:
            return roles
    raise _missing(names, ("slide_id", "label", "p_0", "p_1"), where)


def labels_of(columns: Columns, roles: ColumnRoles, where: str) -> list[int | None]:
    """Give the class index of each row, or None where the label is blank.

    Args:
        columns: Values of each column.
        roles: What each column is.
        where: What holds them, for the message.

    Raises:
        PredictionError: A label is neither blank nor a class.
    """
    values = columns[roles.label]
    if roles.class_names is not None:
        index = {name: c for c, name in enumerate(roles.class_names)}
        return [_named_label(value, index, roles.label, where) for value in values]
    labels: list[int | None] = []
    for value in values:
        number = _number(value, roles.label, where)
        if not math.isnan(number) and not number.is_integer():
            raise PredictionError(
                f"Expected class indices in column '{roles.label}' of {where}, but got {value!r}. "
                "Number the classes from 0."
            )
        labels.append(None if math.isnan(number) else int(number))
    return labels


def numbers_of(columns: Columns, name: str, num_rows: int, where: str) -> Float[np.ndarray, " n"]:
    """Give the numbers of a column; NaN where they are blank or the column is missing.

    Args:
        columns: Values of each column.
        name: The column.
        num_rows: Number of rows.
        where: What holds them, for the message.

    Raises:
        PredictionError: A value is neither blank nor a number.
    """
    values = columns.get(name, [None] * num_rows)
    return np.array([_number(value, name, where) for value in values], dtype=np.float64)


def _plain(names: Sequence[str], where: str) -> ColumnRoles | None:
    num_classes = sum(re.fullmatch(r"p_\d+", name) is not None for name in names)
    if num_classes == 0:
        return None
    label = "Y" if "Y" in names and "label" not in names else "label"
    probs = _numbered("p_", max(2, num_classes))
    needed = ("slide_id", label, *probs)
    if not set(needed) <= set(names):
        raise _missing(names, needed, where)
    return ColumnRoles("slide_id", _patient(names), label, probs, _numbered("std_", num_classes))


def _by_name(names: Sequence[str], where: str) -> ColumnRoles | None:
    classes = tuple(name[2:] for name in names if name.startswith("p_") and len(name) > 2)
    if len(classes) < 2 or not {"slide_id", "label"} <= set(names):
        return None
    probs, stds = (tuple(f"{kind}_{name}" for name in classes) for kind in ("p", "std"))
    return ColumnRoles("slide_id", _patient(names), "label", probs, stds, classes)


def _slideflow(names: Sequence[str], where: str) -> ColumnRoles | None:
    found = [re.fullmatch(r"(.+-)?y_pred\d+", name) for name in names]
    outcomes = sorted({match[1] or "" for match in found if match is not None})
    if not outcomes:
        return None
    if len(outcomes) > 1:
        raise _several([outcome.rstrip("-") for outcome in outcomes], where)
    outcome = outcomes[0]
    num_classes = max(2, sum(match is not None for match in found))
    probs, stds = (_numbered(f"{outcome}{kind}", num_classes) for kind in ("y_pred", "uncertainty"))
    patient = _patient(names) or (f"{outcome}patient" if f"{outcome}patient" in names else None)
    slide = "slide" if "slide" in names or patient is None else patient
    needed = (slide, f"{outcome}y_true", *probs)
    if not set(needed) <= set(names):
        raise _missing(names, needed, where)
    return ColumnRoles(slide, patient, f"{outcome}y_true", probs, stds)


def _stamp(names: Sequence[str], where: str) -> ColumnRoles | None:
    if "PATIENT" not in names:
        return None
    columns_of = {
        target: tuple(name for name in names if name.startswith(f"{target}_"))
        for target in names
        if target not in ("", "PATIENT")
    }
    columns_of = {target: columns for target, columns in columns_of.items() if len(columns) > 1}
    # A class may be named so that its column looks like a target of others: T_a beside T_a_b.
    of_classes = {name for columns in columns_of.values() for name in columns}
    targets = [target for target in columns_of if target not in of_classes]
    if not targets:
        return None
    if len(targets) > 1:
        raise _several(targets, where)
    probs = columns_of[targets[0]]
    classes = tuple(name.removeprefix(f"{targets[0]}_") for name in probs)
    stds = tuple(f"std_{name}" for name in classes)
    return ColumnRoles("PATIENT", "PATIENT", targets[0], probs, stds, classes)


def _patient(names: Sequence[str]) -> str | None:
    return next((name for name in _PATIENT if name in names), None)


def _numbered(start: str, num: int) -> tuple[str, ...]:
    return tuple(f"{start}{c}" for c in range(num))


def _missing(names: Sequence[str], needed: Sequence[str], where: str) -> PredictionError:
    missing = ", ".join(name for name in needed if name not in names)
    return PredictionError(
        f"Expected the columns slide_id, label (or Y) and p_0 to p_{{C-1}} in {where}, or those of "
        f"slideflow or STAMP, but {missing} is missing from {', '.join(names)}. Add it."
    )


def _several(found: Sequence[str], where: str) -> PredictionError:
    return PredictionError(
        f"Expected the predictions of one target in {where}, but got those of "
        f"{', '.join(found)}. Keep the columns of one."
    )


def _number(value: Any, column: str, where: str) -> float:
    if value is None or value in BLANK:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise PredictionError(
            f"Expected numbers in column '{column}' of {where}, but got {value!r}. Number the "
            "classes from 0, or name the columns of probabilities p_<class>; write decimal points."
        ) from error


def _named_label(value: Any, index: Mapping[str, int], column: str, where: str) -> int | None:
    text = str(value).strip()
    if text in index:  # before the blanks: a class may be called None
        return index[text]
    if text in BLANK:
        return None
    if re.fullmatch(r"\d+\.0", text) and text[:-2] in index:  # 1.0: a column with blanks
        return index[text[:-2]]
    raise PredictionError(
        f"Expected one of the classes {', '.join(index)} in column '{column}' of {where}, as the "
        f"columns of the probabilities are named, but got {value!r}. Correct it."
    )
