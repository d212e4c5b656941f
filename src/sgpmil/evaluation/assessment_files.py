"""An assessment as tables for a spreadsheet.

::

    metrics.parquet    a row a fold, a column a metric
    metrics.csv        fold, metric, value, low and high end of its interval
    confusion.csv      slides by label and predicted class
    brier.csv          parts of the Brier score, a row a fold
    uncertainty.csv    every measure of uncertainty, temperature and prediction sets
    instances.csv      every instance score, where instances have labels
    instance_uncertainty.csv, instance_froc.csv, lesions.csv, pixels.csv   likewise
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from sgpmil.bags.files import atomic_path
from sgpmil.evaluation.assessment import Assessment
from sgpmil.evaluation.brier import BrierDecomposition
from sgpmil.evaluation.localisation.froc import FALSE_POSITIVE_RATES
from sgpmil.evaluation.localisation.instance_evaluation import InstanceFrocRow
from sgpmil.evaluation.localisation.lesion_detection import LesionRow
from sgpmil.evaluation.summary import write_metrics

__all__ = ["write_assessment"]

_BRIER_PARTS = tuple(field.name for field in fields(BrierDecomposition))


def write_assessment(folder: Path, assessment: Assessment) -> list[Path]:
    """Write the tables of an assessment; those of an earlier one are replaced.

    Args:
        folder: Where to; made where absent.
        assessment: What was measured.

    Returns:
        The files written.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]] = {
        "metrics.csv": (("fold", "metric", "value", "low", "high"), _metrics(assessment)),
        "confusion.csv": (("label", *assessment.class_names), _confusion(assessment)),
        "brier.csv": (("fold", *_BRIER_PARTS), _brier(assessment)),
        "uncertainty.csv": (("measure", "mean", "sd", "pooled"), _uncertainty(assessment)),
    }
    instances = assessment.instances
    for name, rows in (
        ("instances", [asdict(row) for row in instances.localisation] if instances else []),
        ("instance_uncertainty", [asdict(r) for r in instances.uncertainty] if instances else []),
        ("instance_froc", [_froc(row) for row in instances.instance_froc] if instances else []),
        ("lesions", [_lesions(row) for row in instances.lesions] if instances else []),
        ("pixels", [asdict(row) for row in instances.pixels] if instances else []),
    ):
        if rows:
            tables[f"{name}.csv"] = (tuple(rows[0]), [tuple(row.values()) for row in rows])
        else:
            # Of an earlier assessment, nothing stays beside the new one.
            (folder / f"{name}.csv").unlink(missing_ok=True)
    write_metrics(folder / "metrics.parquet", assessment.folds)
    for name, (header, content) in tables.items():
        with atomic_path(folder / name) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(tuple(_cell(value) for value in row) for row in content)
    return [folder / "metrics.parquet", *(folder / name for name in tables)]


def _metrics(assessment: Assessment) -> Iterable[Sequence[Any]]:
    for number, fold in enumerate(assessment.folds):
        intervals = assessment.intervals[number] if assessment.intervals else None
        for key, value in fold.slide.values.items():
            found = None if intervals is None else intervals.of(key)
            ends = (math.nan, math.nan) if found is None else (found.low, found.high)
            yield (fold.fold, key, value, *ends)


def _confusion(assessment: Assessment) -> Iterable[Sequence[Any]]:
    for name, row in zip(assessment.class_names, assessment.confusion, strict=True):
        yield (name, *row.tolist())


def _brier(assessment: Assessment) -> Iterable[Sequence[Any]]:
    for fold, parts in zip(assessment.folds, assessment.brier, strict=True):
        yield (fold.fold, *asdict(parts).values())


def _uncertainty(assessment: Assessment) -> Iterable[Sequence[Any]]:
    found = assessment.uncertainty
    for row in (*found.measure_rows, *found.calibration_rows):
        yield (row.name, row.mean, row.sd, row.pooled)


def _froc(row: InstanceFrocRow) -> dict[str, Any]:
    return {"fold": row.fold, "score": row.score, **asdict(row.froc)}


def _lesions(row: LesionRow) -> dict[str, Any]:
    found = row.froc
    at = (math.nan,) * len(FALSE_POSITIVE_RATES) if found is None else found.sensitivities
    return {
        "fold": row.fold,
        "score": row.score,
        **{f"at_{rate:g}": s for rate, s in zip(FALSE_POSITIVE_RATES, at, strict=True)},
        "mean": math.nan if found is None else found.mean,
        "num_lesions": 0 if found is None else found.num_lesions,
        "num_slides": 0 if found is None else found.num_slides,
        "note": row.note,
    }


def _cell(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value
