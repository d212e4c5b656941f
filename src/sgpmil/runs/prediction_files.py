"""Tables of predictions on disk: parquet of this package, and CSV of any system.

The names of the columns say what they are:

============  ===============  ==========  ==============  ======================  ===========
table         slide            patient     label           probabilities           deviations
============  ===============  ==========  ==============  ======================  ===========
plain         slide_id         case_id     label           p_0, p_1, …             std_0, …
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

import csv
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np

from sgpmil.bags.files import atomic_path, read_json, refuse_unfit_names
from sgpmil.bags.readers.own_data import refuse_inflated
from sgpmil.bags.tables import from_spreadsheet, to_spreadsheet
from sgpmil.bags.target import ClassTarget, Target, read_target
from sgpmil.errors import PredictionError, damage_as, reason_of
from sgpmil.evaluation.prediction import Prediction, Seen, entropy
from sgpmil.evaluation.prediction_columns import (
    ENSEMBLE,
    MEASURES,
    NOVELTY,
    measure_columns,
    output_columns,
    prediction_columns,
    text_columns,
)
from sgpmil.evaluation.prediction_table import PredictionTable, check_predictions
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.evaluation.uncertainty.decisions import Decision
from sgpmil.shapes import Float

FilePath = str | os.PathLike[str]
Columns = Mapping[str, Sequence[Any]]
"""The values of each column, by its name."""

TABLE = "predictions.parquet"
"""Name of the table in a folder of predictions."""

PROVENANCE = "provenance.json"
"""Name of the file of provenance in a folder of predictions, beside the table that holds it too."""

_METADATA_KEY = b"sgpmil"
_FORMAT = 1
_PATIENT = ("case_id", "PATIENT", "patient")
_VALUE_BYTES = 32
"""Bytes that a value takes in memory, about."""
_BLANK = ("", "NA", "<NA>", "None", "nan", "NaN")


Chunk = tuple[PredictionTable, Sequence[Decision]]
"""Predictions of some slides of a table, and the decisions on them, if any."""


def write_predictions(
    path: FilePath, table: PredictionTable, decisions: Sequence[Decision] = ()
) -> None:
    """Write predictions as parquet, a row a slide.

    Columns: ``slide_id, case_id, label, p_0 … p_{C-1}, std_0 … std_{C-1}, entropy,
    expected_entropy, mutual_information``, ``novel_share, novelty_p`` where the model can tell
    them, and ``disagreement`` of several models; the names of the classes and the provenance are in
    the file's metadata.
    ``seen`` says which slides the model was trained or validated on, where there are such.
    Decisions add ``prediction_set``, the names of the classes joined by ``|``, and ``defer``, yes
    or no. Scores of instances are not written (see `write_instance_scores`).

    Args:
        path: File to write; replaced whole where it exists.
        table: Predictions.
        decisions: Decisions on these slides, in their order.

    Raises:
        PredictionError: The decisions are on other slides.
    """
    write_chunks(path, [(table, decisions)])


def write_chunks(path: FilePath, chunks: Iterable[Chunk], also: Collection[str] = ()) -> None:
    """Write a table of which only a chunk is in memory at a time, as `write_predictions` does.

    Args:
        path: File to write; replaced whole where it exists.
        chunks: At least one; all have the target and the provenance of the whole table.
        also: Optional columns (`optional_columns`) that any of the chunks has.
    """
    import pyarrow.parquet as pq

    with atomic_path(path) as temporary, ExitStack() as stack:
        writer = None
        for table, decisions in chunks:
            content = _arrow_table(table, decisions, also)
            if writer is None:
                schema = content.schema.with_metadata({_METADATA_KEY: _described(table)})
                writer = stack.enter_context(pq.ParquetWriter(temporary, schema))
            writer.write_table(content)


def _described(table: PredictionTable) -> bytes:
    described: dict[str, Any] = {"format": _FORMAT, "target": table.target.to_json()}
    if table.provenance is not None:
        described["provenance"] = table.provenance.to_json()
    return json.dumps(described, default=str).encode()


def _arrow_table(
    table: PredictionTable, decisions: Sequence[Decision], also: Collection[str]
) -> Any:
    import pyarrow as pa

    rows, double = table.predictions, pa.float64()
    columns: dict[str, Any] = {
        "slide_id": pa.array([p.slide_id for p in rows], pa.string()),
        "case_id": pa.array([p.case_id for p in rows], pa.string()),
        "label": pa.array([p.label for p in rows], pa.int64()),
    }
    probs, stds = output_columns(_numbers_of_classes(table.target))
    for names, values in ((probs, table.probs), (stds, table.std)):
        columns |= {name: pa.array(values[:, c], double) for c, name in enumerate(names)}
    for name, numbers in measure_columns(table, also).items():
        columns[name] = pa.array(numbers, double)
    for name, texts in text_columns(table, decisions, also).items():
        columns[name] = pa.array(texts, pa.string())
    return pa.table(columns)


def write_predictions_csv(
    path: FilePath, table: PredictionTable, decisions: Sequence[Decision] = ()
) -> None:
    """Write predictions for a spreadsheet; `read_predictions` reads them back, to six digits.

    Columns: ``slide_id, case_id, label, predicted``, ``p_<class>`` and ``std_<class>`` of each
    class, then those of `write_predictions`. Labels are names of classes. Where a class has a
    name that such a table cannot hold (an empty one, or one that begins or ends with a space),
    classes are numbered instead: ``p_0, p_1, …`` with labels 0, 1, …. Text that a spreadsheet
    would take for a formula gets an apostrophe before it.

    Args:
        path: File to write; replaced whole where it exists.
        table: Predictions.
        decisions: Decisions on these slides, in their order.

    Raises:
        PredictionError: The decisions are on other slides.
    """
    write_chunks_csv(path, [(table, decisions)])


def write_chunks_csv(path: FilePath, chunks: Iterable[Chunk], also: Collection[str] = ()) -> None:
    """Write a table of which only a chunk is in memory at a time, as `write_predictions_csv` does.

    Args:
        path: File to write; replaced whole where it exists.
        chunks: At least one; all have the target of the whole table.
        also: Optional columns (`optional_columns`) that any of the chunks has.
    """
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number, (table, decisions) in enumerate(chunks):
            columns = _readable_columns(table, prediction_columns(table, decisions, also))
            if number == 0:
                # A reader finds the separator in the header, where names may hold other separators.
                has_others = re.search("[;\t]", "".join(columns)) is not None
                header = csv.writer(file, quoting=csv.QUOTE_ALL) if has_others else writer
                header.writerow(columns)
            for row in zip(*columns.values(), strict=True):
                writer.writerow([_cell(value) for value in row])


def _readable_columns(
    table: PredictionTable, columns: dict[str, list[Any]]
) -> dict[str, list[Any]]:
    """Number the classes where the columns by name would not be read as the same classes."""
    named = output_columns(table.target.names)
    if all(name == name.strip() for name in table.target.names):
        with suppress(PredictionError):
            roles = _column_roles(tuple(columns), "the predictions")
            if (roles.probs, roles.stds) == named:
                return columns
    numbered = output_columns(_numbers_of_classes(table.target))
    names = dict(zip(chain(*named), chain(*numbered), strict=True))
    renamed = {names.get(name, name): values for name, values in columns.items()}
    return renamed | {"label": [p.label for p in table.predictions]}


def _numbers_of_classes(target: Target) -> tuple[str, ...]:
    return tuple(map(str, range(target.num_outputs)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6f}"
    return "" if value is None else to_spreadsheet(str(value))


def read_predictions(path: FilePath) -> PredictionTable:
    """Read predictions, of this package or of any other system.

    Parquet and CSV need the columns ``slide_id``, ``label`` (or CLAM's ``Y``; blank where
    unknown) and ``p_0 … p_{C-1}``. Other columns of `write_predictions` are used where present;
    without them, standard deviations, expected entropy and mutual information are NaN. Tables of
    slideflow and STAMP are recognised by their columns (see the head of this module), as is
    ``slide_id, label, p_<class>, …`` with the names of classes for labels.

    Args:
        path: File to read, a CSV unless it is parquet; or a folder of predictions.

    Raises:
        PredictionError: The file is missing, damaged or empty, or its content is not a table
            of predictions.
    """
    file = Path(path) / TABLE if Path(path).is_dir() else Path(path)
    require_file(file, "predictions")
    with damage_as(PredictionError, "predictions", file, "Predict again, or restore the file."):
        return _read(file)


def _read(file: Path) -> PredictionTable:
    with file.open("rb") as stream:
        is_parquet = stream.read(4) == b"PAR1" or file.suffix.lower() in {".parquet", ".pq"}
    columns, described = _read_parquet(file) if is_parquet else (_read_csv(file), {})
    provenance = described.get("provenance")
    if not is_parquet and file.with_name(TABLE).exists():
        provenance = _beside(file.with_name(PROVENANCE))  # predictions.csv of sgpmil predict
    table = _table(columns, described.get("target"), f"'{file}'")
    return replace(table, provenance=PredictionProvenance.from_json(provenance))


def _beside(file: Path) -> Any:
    """Read the provenance of a folder; None where there is none, or it is damaged."""
    try:
        return read_json(file)
    except (OSError, ValueError):
        return None


def require_file(file: Path, what: str) -> None:
    """Refuse a file that is not there."""
    if not file.is_file():
        raise PredictionError(
            f"Expected a file of {what} at '{file}', but there is none. Check the path."
        )


def _read_parquet(file: Path) -> tuple[Columns, Mapping[str, Any]]:
    try:
        content, stored = read_parquet(file)
        metadata = stored.get(_METADATA_KEY)
        described = {} if metadata is None else json.loads(metadata)
        described = {} if metadata is None else described | {"target": read_target(described)}
    except PredictionError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise PredictionError(
            f"Expected predictions as parquet in '{file}', but it cannot be read "
            f"({reason_of(error)}). Predict again, or restore the file."
        ) from error
    return content, described


def read_parquet(
    file: Path, columns: Collection[str] | None = None
) -> tuple[Columns, Mapping[bytes, bytes]]:
    """Read a parquet file that is no larger than its size allows: every such file is read here.

    A value that is repeated takes no room in the file, so the values are counted before they are
    read, and text before it is repeated.

    Args:
        file: The file.
        columns: Columns to read, of those that it has; by default all.

    Returns:
        The columns, and the metadata of the file.

    Raises:
        PredictionError: It unfolds to far more than its size.
        Exception: It is damaged, in any of many ways.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    size, described, schema = file.stat().st_size, pq.read_metadata(file), pq.read_schema(file)
    chunks = [
        described.row_group(group).column(column)
        for group in range(described.num_row_groups)
        for column in range(described.num_columns)
    ]
    num_values = sum(max(chunk.num_values, 0) for chunk in chunks)
    num_values = max(num_values, described.num_rows * described.num_columns)
    num_bytes = sum(max(chunk.total_uncompressed_size, 0) for chunk in chunks)
    refuse_inflated(num_bytes + _VALUE_BYTES * num_values, size, file, PredictionError)
    kinds = {field.name: field.type for field in schema}
    texts = [name for name, kind in kinds.items() if _is_text(kind)]
    # Others, such as lists, are of no table of predictions.
    flat = (pa.types.is_primitive, pa.types.is_null, pa.types.is_dictionary, _is_text)
    wanted = [
        name
        for name, kind in kinds.items()
        if any(fits(kind) for fits in flat) and (columns is None or name in columns)
    ]
    with pq.ParquetFile(file, read_dictionary=texts) as content:
        table = content.read(wanted)
    length = sum(
        pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0
        for column in table.columns
        if pa.types.is_dictionary(column.type)
        for chunk in column.chunks
    )
    refuse_inflated(length, size, file, PredictionError)
    return table.to_pydict(), schema.metadata or {}


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _read_csv(file: Path) -> Columns:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            header_line = stream.readline()
            stream.seek(0)
            # Spreadsheets write semicolons where a comma is the decimal point, and tabs as .tsv.
            mark = max(",;\t", key=re.sub('"[^"]*("|$)', "", header_line).count)
            rows = [row for row in csv.reader(stream, delimiter=mark, strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise PredictionError(
            f"Expected predictions as comma-separated text in '{file}', but it cannot be read "
            f"({error}). Save it as UTF-8 CSV."
        ) from error
    if not rows:
        raise PredictionError(
            f"Expected predictions in '{file}', but it is empty. Write it with a header line."
        )
    header = [name.strip() for name in rows[0]]
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if twice:
        raise PredictionError(
            f"Expected every column once in '{file}', but got '{twice[0]}' twice. Remove one."
        )
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise PredictionError(
                f"Expected {len(header)} values a row in '{file}', as in its header, but got "
                f"{len(row)} in row {number}. Complete the row."
            )
    return {
        name: [from_spreadsheet(row[i].strip()) for row in rows[1:]]
        for i, name in enumerate(header)
    }


def _table(columns: Columns, target: Target | None, where: str) -> PredictionTable:
    roles = _column_roles(tuple(columns), where)
    target = target or roles.target or ClassTarget.numbered(len(roles.probs))
    if target.num_outputs != len(roles.probs):
        raise PredictionError(
            f"Expected the probabilities of {target.num_outputs} classes in {where}, as its "
            f"metadata names them, but got {len(roles.probs)}. Predict again."
        )
    slide_ids = _texts(columns[roles.slide])
    if not slide_ids:
        raise PredictionError(
            f"Expected at least one slide in {where}, but got none. Predict at least one slide."
        )
    patients = slide_ids if roles.patient is None else _texts(columns[roles.patient])
    patients = ["" if patient in _BLANK else patient for patient in patients]
    labels = _labels(columns, roles, where)
    groups = (roles.probs, roles.stds, (*MEASURES, *NOVELTY, *ENSEMBLE))
    probs, std, measures = (
        np.stack([_numbers(columns, name, len(slide_ids), where) for name in names], axis=1)
        for names in groups
    )
    check_predictions(probs, labels, slide_ids, where)
    refuse_unfit_names(slide_ids, PredictionError, where)
    known: dict[str, Seen] = {part: part for part in get_args(Seen)}
    seen = [known.get(str(value), "") for value in columns.get("seen", [""] * len(slide_ids))]
    measures[:, 0] = np.where(np.isnan(measures[:, 0]), entropy(probs), measures[:, 0])
    return PredictionTable(
        tuple(
            Prediction(
                slide_id=slide_ids[i],
                case_id=patients[i] or slide_ids[i],
                label=labels[i],
                probs=probs[i],
                std=std[i],
                entropy=float(measures[i, 0]),
                expected_entropy=float(measures[i, 1]),
                mutual_information=float(measures[i, 2]),
                novel_share=float(measures[i, 3]),
                novelty_p=float(measures[i, 4]),
                disagreement=float(measures[i, 5]),
                seen=seen[i],
            )
            for i in range(len(slide_ids))
        ),
        target,
    )


def _texts(values: Sequence[Any]) -> list[str]:
    return ["" if value is None else str(value) for value in values]


@dataclass(frozen=True, slots=True)
class _ColumnRoles:
    """The meaning of each column of a table.

    Args:
        slide: Column of the slides' names.
        patient: Column of the patients' names, where there is one.
        label: Column of the labels.
        probs: Column of each class's probability.
        stds: Column of each class's standard deviation; it may be missing.
        target: The classes, where the labels are names, not indices.
    """

    slide: str
    patient: str | None
    label: str
    probs: tuple[str, ...]
    stds: tuple[str, ...]
    target: Target | None = None


def _column_roles(names: Sequence[str], where: str) -> _ColumnRoles:
    """Recognise the columns by their names alone."""
    for recognise in (_plain, _slideflow, _stamp, _by_name):
        roles = recognise(names, where)
        if roles is not None:
            return roles
    raise _missing(names, ("slide_id", "label", "p_0", "p_1"), where)


def _labels(columns: Columns, roles: _ColumnRoles, where: str) -> list[int | None]:
    """Return the class index of each row, or None where the label is blank."""
    values = columns[roles.label]
    if roles.target is not None:
        index = {name: c for c, name in enumerate(roles.target.names)}
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


def _numbers(columns: Columns, name: str, num_rows: int, where: str) -> Float[np.ndarray, " n"]:
    """Return a column as numbers, NaN where they are blank or the column is missing."""
    values = columns.get(name, [None] * num_rows)
    return np.array([_number(value, name, where) for value in values], dtype=np.float64)


def _plain(names: Sequence[str], where: str) -> _ColumnRoles | None:
    num_outputs = sum(re.fullmatch(r"p_\d+", name) is not None for name in names)
    if num_outputs == 0 or _is_named_by_us(names):
        return None
    label = "Y" if "Y" in names and "label" not in names else "label"
    probs = _numbered("p_", max(2, num_outputs))
    needed = ("slide_id", label, *probs)
    if not set(needed) <= set(names):
        raise _missing(names, needed, where)
    return _ColumnRoles("slide_id", _patient(names), label, probs, _numbered("std_", num_outputs))


def _classes(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name[2:] for name in names if name.startswith("p_") and len(name) > 2)


def _is_named_by_us(names: Sequence[str]) -> bool:
    """Return whether columns such as p_3, p_4 name classes, in a table that this package wrote.

    Tables with the columns p_0, p_1, … in order read the same with names as with numbers, except
    that an earlier version wrote numbers for labels.
    """
    classes = _classes(names)
    is_ours = "predicted" in names and {*output_columns(classes)[1]} <= set(names)
    return is_ours and classes != tuple(map(str, range(len(classes))))


def _by_name(names: Sequence[str], where: str) -> _ColumnRoles | None:
    classes = _classes(names)
    if len(classes) < 2 or not {"slide_id", "label"} <= set(names):
        return None
    probs, stds = output_columns(classes)
    return _ColumnRoles("slide_id", _patient(names), "label", probs, stds, ClassTarget(classes))


def _slideflow(names: Sequence[str], where: str) -> _ColumnRoles | None:
    found = [re.fullmatch(r"(.+-)?y_pred\d+", name) for name in names]
    outcomes = sorted({match[1] or "" for match in found if match is not None})
    if not outcomes:
        return None
    if len(outcomes) > 1:
        raise _several([outcome.rstrip("-") for outcome in outcomes], where)
    outcome = outcomes[0]
    num_outputs = max(2, sum(match is not None for match in found))
    probs, stds = (_numbered(f"{outcome}{kind}", num_outputs) for kind in ("y_pred", "uncertainty"))
    patient = _patient(names) or (f"{outcome}patient" if f"{outcome}patient" in names else None)
    slide = "slide" if "slide" in names or patient is None else patient
    needed = (slide, f"{outcome}y_true", *probs)
    if not set(needed) <= set(names):
        raise _missing(names, needed, where)
    return _ColumnRoles(slide, patient, f"{outcome}y_true", probs, stds)


def _stamp(names: Sequence[str], where: str) -> _ColumnRoles | None:
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
    return _ColumnRoles("PATIENT", "PATIENT", targets[0], probs, stds, ClassTarget(classes))


def _patient(names: Sequence[str]) -> str | None:
    return next((name for name in _PATIENT if name in names), None)


def _numbered(start: str, num: int) -> tuple[str, ...]:
    return tuple(f"{start}{c}" for c in range(num))


def _missing(names: Sequence[str], needed: Sequence[str], where: str) -> PredictionError:
    missing = ", ".join(name for name in needed if name not in names)
    return PredictionError(
        f"Expected the columns slide_id, label (or Y) and p_0 to p_{{C-1}} in {where}, or those of "
        f"slideflow or STAMP, but there are {', '.join(names)} without {missing}. "
        "Add what is missing."
    )


def _several(found: Sequence[str], where: str) -> PredictionError:
    return PredictionError(
        f"Expected the predictions of one target in {where}, but got those of "
        f"{', '.join(found)}. Keep the columns of one."
    )


def _number(value: Any, column: str, where: str) -> float:
    if value is None or value in _BLANK:
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
    if text in _BLANK:
        return None
    if re.fullmatch(r"\d+\.0", text) and text[:-2] in index:  # 1.0: a column with blanks
        return index[text[:-2]]
    raise PredictionError(
        f"Expected one of the classes {', '.join(index)} in column '{column}' of {where}, as the "
        f"columns of the probabilities are named, but got {value!r}. Correct it."
    )
