"""A folder of predictions: the table, and the scores of each slide's instances.

::

    predictions.parquet    written last: the folder is complete
    attention/<slide>.h5   scores of the instances
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.runs.instance_files import read_instance_scores, write_instance_scores
from sgpmil.runs.prediction_files import read_predictions, write_predictions

__all__ = ["is_prediction_folder", "read_prediction_folder", "write_prediction_folder"]

_TABLE = "predictions.parquet"


def is_prediction_folder(folder: Path) -> bool:
    """Say whether a folder holds complete predictions."""
    return (folder / _TABLE).exists()


def write_prediction_folder(
    folder: str | os.PathLike[str],
    predictions: Iterable[Prediction],
    class_names: tuple[str, ...],
    *,
    keep_instances: bool = True,
) -> PredictionTable:
    """Write predictions slide by slide, the table last.

    Args:
        folder: Where to; predictions that are there are replaced.
        predictions: Predictions, possibly made while they are written.
        class_names: Name of each class.
        keep_instances: Whether the table returned has the scores of the instances, which of many
            slides may not fit in memory.

    Returns:
        The predictions.

    Raises:
        OSError: The folder cannot be written.
    """
    place = Path(folder)
    # Old scores beside a new table, or a new score beside an old table, would be mixed runs.
    (place / _TABLE).unlink(missing_ok=True)
    shutil.rmtree(place / "attention", ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    kept = []
    for prediction in predictions:
        if prediction.instances is not None:
            write_instance_scores(_scores_path(place, prediction.slide_id), prediction.instances)
        kept.append(prediction if keep_instances else replace(prediction, instances=None))
    table = PredictionTable(tuple(kept), class_names)
    write_predictions(place / _TABLE, table)
    return table


def read_prediction_folder(
    folder: str | os.PathLike[str], damaged: dict[str, str] | None = None
) -> PredictionTable:
    """Read predictions, with the scores of the instances where there are any.

    Args:
        folder: The folder.
        damaged: Takes the reason of each slide whose scores cannot be read, which then has none;
            without it they are an error.

    Raises:
        PredictionError: A file is missing or damaged.
    """
    place = Path(folder)
    table = read_predictions(place / _TABLE)
    predictions = []
    for prediction in table.predictions:
        path = _scores_path(place, prediction.slide_id)
        try:
            scores = read_instance_scores(path) if path.exists() else None
        except PredictionError as error:
            if damaged is None:
                raise
            damaged[prediction.slide_id], scores = str(error), None
        predictions.append(replace(prediction, instances=scores))
    return PredictionTable(tuple(predictions), table.class_names)


def _scores_path(folder: Path, slide_id: str) -> Path:
    return folder / "attention" / f"{slide_id}.h5"
