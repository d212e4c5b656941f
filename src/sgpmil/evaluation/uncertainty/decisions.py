"""What follows from predictions: the set of possible classes, and whether a human must look.

Decisions are two further columns of the files of predictions, which `read_predictions` passes
over: ``prediction_set``, the names of the classes joined by ``|``, and ``defer``, yes or no.
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.files import atomic_path
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import ConformalPredictor
from sgpmil.evaluation.uncertainty.deferral import DeferralRule

__all__ = ["Decision", "add_decisions", "decide"]

_SEPARATOR = "|"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is decided of one slide.

    Args:
        slide_id: Name of the slide.
        prediction_set: Classes the slide may be of; None where no sets were asked for.
        deferred: Whether it goes to a human; None where that was not asked for.
    """

    slide_id: str
    prediction_set: tuple[str, ...] | None = None
    deferred: bool | None = None

    @property
    def columns(self) -> dict[str, str]:
        """The decision as it is written, without what was not asked for."""
        columns = {}
        if self.prediction_set is not None:
            columns["prediction_set"] = _SEPARATOR.join(self.prediction_set)
        if self.deferred is not None:
            columns["defer"] = "yes" if self.deferred else "no"
        return columns


def decide(
    table: PredictionTable,
    conformal: ConformalPredictor | None = None,
    deferral: DeferralRule | None = None,
) -> tuple[Decision, ...]:
    """Decide every slide.

    Args:
        table: Predictions.
        conformal: What gives the sets.
        deferral: What says who decides.

    Raises:
        PredictionError: The classes are not those of the calibration slides.
    """
    num_slides = len(table)
    sets = [None] * num_slides if conformal is None else conformal.sets(table).names()
    deferred = [None] * num_slides if deferral is None else deferral.defers(table).tolist()
    return tuple(
        Decision(slide_id, names, defers)
        for slide_id, names, defers in zip(table.slide_ids, sets, deferred, strict=True)
    )


def add_decisions(path: str | os.PathLike[str], decisions: Sequence[Decision]) -> None:
    """Add decisions to a file of predictions, as further columns.

    Args:
        path: The file, parquet or CSV, of the same slides in the same order; replaced whole.
            Columns of earlier decisions are replaced.
        decisions: One a slide.

    Raises:
        PredictionError: The slides are not those of the file.
    """
    file = Path(path)
    names = list(decisions[0].columns) if decisions else []
    columns = {name: [decision.columns[name] for decision in decisions] for name in names}
    slide_ids = [decision.slide_id for decision in decisions]
    if file.suffix == ".parquet":
        _add_to_parquet(file, slide_ids, columns)
    else:
        _add_to_csv(file, slide_ids, columns)


def _add_to_parquet(file: Path, slide_ids: list[str], columns: dict[str, list[str]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = pq.read_table(file)
    _check_slides(content["slide_id"].to_pylist(), slide_ids, file)
    for name, values in columns.items():
        if name in content.column_names:
            content = content.drop_columns([name])
        content = content.append_column(name, pa.array(values, pa.string()))
    with atomic_path(file) as temporary:
        pq.write_table(content, temporary)


def _add_to_csv(file: Path, slide_ids: list[str], columns: dict[str, list[str]]) -> None:
    with file.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
    header = [name for name in reader.fieldnames or () if name not in columns]
    _check_slides([row["slide_id"] for row in rows], slide_ids, file)
    with atomic_path(file) as temporary, temporary.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, [*header, *columns], extrasaction="ignore")
        writer.writeheader()
        for number, row in enumerate(rows):
            writer.writerow(row | {name: values[number] for name, values in columns.items()})


def _check_slides(found: list[str], expected: list[str], file: Path) -> None:
    if found != expected:
        raise PredictionError(
            f"Expected the slides of the decisions in '{file}', in their order, but got others. "
            "Decide on the predictions of this file."
        )
