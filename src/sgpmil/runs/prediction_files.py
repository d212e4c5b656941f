"""Tables of predictions on disk: parquet (ours) and CSV (anyone's)."""

import csv
import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction, entropy
from sgpmil.evaluation.prediction_table import PredictionTable, check_predictions
from sgpmil.runs.prediction_columns import BLANK, Columns, column_roles, labels_of, numbers_of

__all__ = [
    "TABLE",
    "PredictionTable",
    "read_predictions",
    "require_file",
    "write_predictions",
    "write_predictions_csv",
]

FilePath = str | os.PathLike[str]

TABLE = "predictions.parquet"
"""Name of the table in a folder of predictions."""

_METADATA_KEY = b"sgpmil"
_FORMAT = 1
_MEASURES = ("entropy", "expected_entropy", "mutual_information")


def write_predictions(path: FilePath, table: PredictionTable) -> None:
    """Write predictions as parquet, a row a slide.

    Columns: ``slide_id, case_id, label, p_0 … p_{C-1}, std_0 … std_{C-1}, entropy,
    expected_entropy, mutual_information``; the names of the classes are in the file's metadata.
    Scores of instances are not written (see `write_instance_scores`).

    Args:
        path: File to write; replaced whole where it exists.
        table: Predictions.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, double = table.predictions, pa.float64()
    columns: dict[str, Any] = {
        "slide_id": pa.array([p.slide_id for p in rows], pa.string()),
        "case_id": pa.array([p.case_id for p in rows], pa.string()),
        "label": pa.array([p.label for p in rows], pa.int64()),
    }
    for c in range(table.num_classes):
        columns[f"p_{c}"] = pa.array(table.probs[:, c], double)
    for c in range(table.num_classes):
        columns[f"std_{c}"] = pa.array(table.std[:, c], double)
    for name in _MEASURES:
        columns[name] = pa.array([float(getattr(p, name)) for p in rows], double)
    metadata = json.dumps({"format": _FORMAT, "class_names": list(table.class_names)})
    content = pa.table(columns).replace_schema_metadata({_METADATA_KEY: metadata.encode()})
    with atomic_path(path) as temporary:
        pq.write_table(content, temporary)


def write_predictions_csv(path: FilePath, table: PredictionTable) -> None:
    """Write predictions for a spreadsheet; `read_predictions` reads them back, to six digits.

    Args:
        path: File to write; replaced whole where it exists.
        table: The predictions.
    """
    columns = range(table.num_classes)
    with atomic_path(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        names = (*(f"p_{c}" for c in columns), *(f"std_{c}" for c in columns), *_MEASURES)
        writer.writerow(["slide_id", "case_id", "label", "predicted", *names])
        for p in table.predictions:
            numbers = (*p.probs, *p.std, *(getattr(p, name) for name in _MEASURES))
            label = "" if p.label is None else p.label
            name = table.class_names[p.predicted_class]
            cells = ("" if math.isnan(number) else f"{number:.6f}" for number in numbers)
            writer.writerow([p.slide_id, p.case_id, label, name, *cells])


def read_predictions(path: FilePath) -> PredictionTable:
    """Read predictions, of this package or of any other system.

    Parquet and CSV need the columns ``slide_id``, ``label`` (or CLAM's ``Y``; blank where
    unknown) and ``p_0 … p_{C-1}``. Other columns of `write_predictions` are used where present;
    without them, standard deviations, expected entropy and mutual information are NaN. Tables of
    slideflow and STAMP are recognised by their columns (see `prediction_columns`), as is
    ``slide_id, label, p_<class>, …`` with the names of classes for labels.

    Args:
        path: File to read, a CSV unless it is parquet; or a folder of predictions.

    Raises:
        PredictionError: The file is missing, damaged or empty, or its content is not a table
            of predictions.
    """
    file = Path(path) / TABLE if Path(path).is_dir() else Path(path)
    require_file(file, "predictions")
    with file.open("rb") as stream:
        is_parquet = stream.read(4) == b"PAR1" or file.suffix.lower() in {".parquet", ".pq"}
    columns, class_names = _read_parquet(file) if is_parquet else (_read_csv(file), None)
    return _table(columns, class_names, f"'{file}'")


def require_file(file: Path, what: str) -> None:
    """Refuse a file that is not there."""
    if not file.is_file():
        raise PredictionError(
            f"Expected a file of {what} at '{file}', but there is none. Check the path."
        )


def _read_parquet(file: Path) -> tuple[Columns, tuple[str, ...] | None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = pq.read_table(file)
        metadata = (content.schema.metadata or {}).get(_METADATA_KEY)
        names = None if metadata is None else tuple(json.loads(metadata)["class_names"])
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise PredictionError(
            f"Expected predictions as parquet in '{file}', but it cannot be read ({error}). "
            "Predict again, or restore the file."
        ) from error
    return content.to_pydict(), names


def _read_csv(file: Path) -> Columns:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            header_line = stream.readline()
            stream.seek(0)
            # Spreadsheets write semicolons where a comma is the decimal point, and tabs as .tsv.
            mark = max(",;\t", key=header_line.count)
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
    return {name: [row[i].strip() for row in rows[1:]] for i, name in enumerate(header)}


def _table(columns: Columns, class_names: tuple[str, ...] | None, where: str) -> PredictionTable:
    roles = column_roles(tuple(columns), where)
    num_classes = len(roles.probs)
    class_names = class_names or roles.class_names or tuple(str(c) for c in range(num_classes))
    if len(class_names) != num_classes:
        raise PredictionError(
            f"Expected the probabilities of {len(class_names)} classes in {where}, as its "
            f"metadata names them, but got {num_classes}. Predict again."
        )
    slide_ids = _texts(columns[roles.slide])
    if not slide_ids:
        raise PredictionError(
            f"Expected at least one slide in {where}, but got none. Predict at least one slide."
        )
    patients = slide_ids if roles.patient is None else _texts(columns[roles.patient])
    patients = ["" if patient in BLANK else patient for patient in patients]
    labels = labels_of(columns, roles, where)
    groups = (roles.probs, roles.stds, _MEASURES)
    probs, std, measures = (
        np.stack([numbers_of(columns, name, len(slide_ids), where) for name in names], axis=1)
        for names in groups
    )
    check_predictions(probs, labels, slide_ids, where)
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
            )
            for i in range(len(slide_ids))
        ),
        class_names,
    )


def _texts(values: Sequence[Any]) -> list[str]:
    return ["" if value is None else str(value) for value in values]
