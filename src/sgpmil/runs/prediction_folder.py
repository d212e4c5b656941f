"""A folder of predictions: the table, and the scores of each slide's instances.

::

    predictions.parquet    written last: the folder is complete
    provenance.json        origin of the predictions, which the table holds, too
    attention/<slide>.h5   scores of the instances
"""

import io
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sgpmil.bags.files import (
    atomic_path,
    file_name,
    refuse_unfit_names,
    remove_leftovers,
    write_text,
)
from sgpmil.bags.readers.own_data import own_dataset, refuse_missing_data
from sgpmil.bags.readers.stored_values import number_attribute, whole_coordinates, whole_side
from sgpmil.bags.target import Target
from sgpmil.errors import PredictionError, damage_as, reason_of
from sgpmil.evaluation.prediction import SCORE_ARRAYS, InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.evaluation.uncertainty.decisions import SET_SEPARATOR, Decision
from sgpmil.runs.prediction_files import (
    PROVENANCE,
    TABLE,
    Columns,
    read_parquet,
    read_predictions,
    require_file,
    write_predictions,
)

_DATASETS = (*SCORE_ARRAYS, "coords", "instance_labels")


def is_prediction_folder(folder: Path) -> bool:
    """Return whether a folder holds complete predictions."""
    return (folder / TABLE).exists()


def write_prediction_folder(
    folder: str | os.PathLike[str],
    predictions: Iterable[Prediction],
    target: Target,
    *,
    provenance: PredictionProvenance | None = None,
    keep_instances: bool = True,
) -> PredictionTable:
    """Write predictions slide by slide, the table last.

    Args:
        folder: Folder to write to; predictions in it are replaced.
        predictions: Predictions, possibly made while they are written.
        target: Quantity that is predicted.
        provenance: Origin of the predictions, which is also written beside them.
        keep_instances: Whether the table returned has the scores of the instances, which of many
            slides may not fit in memory.

    Returns:
        The predictions.

    Raises:
        OSError: The folder cannot be written.
        PredictionError: Two slides would have one file, or a name is no slide's.
    """
    place = Path(folder)
    # Old scores beside a new table, or a new score beside an old table, would be mixed runs.
    (place / TABLE).unlink(missing_ok=True)
    shutil.rmtree(place / "attention", ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    remove_leftovers(place)
    kept = []
    for prediction in predictions:
        if prediction.instances is not None:
            scores = scores_path(place, prediction.slide_id)
            if scores.exists():
                raise PredictionError(
                    f"Expected names of slides that make different files, but another has the file "
                    f"of '{prediction.slide_id}' ({scores}): on this disk names that differ in "
                    "their case alone are one. Rename one of the slides."
                )
            write_instance_scores(scores, prediction.instances)
        kept.append(prediction if keep_instances else replace(prediction, instances=None))
    table = PredictionTable(tuple(kept), target, provenance)
    write_prediction_table(place, table)
    return table


def write_prediction_table(
    folder: str | os.PathLike[str], table: PredictionTable, decisions: Sequence[Decision] = ()
) -> None:
    """Write the table of a folder of predictions, and its provenance beside it.

    Args:
        folder: The folder.
        table: Predictions.
        decisions: Decisions on these slides, in their order.

    Raises:
        PredictionError: The decisions are on other slides, or a name is no slide's.
    """
    place = Path(folder)
    refuse_unfit_names(table.slide_ids, PredictionError, str(place))
    write_provenance(place, table.provenance)
    write_predictions(place / TABLE, table, decisions)


def write_provenance(folder: Path, provenance: PredictionProvenance | None) -> None:
    """Write provenance beside a table, in place of an earlier one."""
    (folder / PROVENANCE).unlink(missing_ok=True)
    if provenance is not None:
        text = json.dumps(provenance.to_json(), indent=1, default=str)
        write_text(folder / PROVENANCE, text)


def read_prediction_folder(
    path: str | os.PathLike[str], damaged: dict[str, str] | None = None
) -> PredictionTable:
    """Read predictions, with the scores of the instances where there are any.

    Args:
        path: The folder; or the file of a table, which has no scores.
        damaged: Takes the reason of each slide whose scores cannot be read, which then has none;
            without it they are an error.

    Raises:
        PredictionError: A file is missing or damaged.
    """
    table = read_predictions(path)
    predictions = []
    for prediction in table.predictions:
        try:
            scores = read_slide_scores(path, prediction.slide_id)
        except PredictionError as error:
            if damaged is None:
                raise
            damaged[prediction.slide_id], scores = str(error), None
        predictions.append(replace(prediction, instances=scores))
    return replace(table, predictions=tuple(predictions))


def read_slide_scores(folder: str | os.PathLike[str], slide_id: str) -> InstanceScores | None:
    """Read the scores of one slide's instances; None where there are none.

    Raises:
        PredictionError: The file is damaged.
    """
    path = scores_path(Path(folder), slide_id)
    return read_instance_scores(path) if path.exists() else None


def read_decisions(folder: str | os.PathLike[str], target: Target) -> dict[str, Decision]:
    """Read the decisions of ``sgpmil predict --coverage --defer`` by slide; empty without any.

    A set is None where its names are ambiguous, as of classes ``a``, ``b`` and ``a|b``.
    """
    return _decisions(_decision_columns(folder), target)


def read_prediction_sets(
    folder: str | os.PathLike[str], target: Target
) -> dict[str, tuple[str, ...] | None]:
    """Read the prediction sets of ``sgpmil predict --coverage`` by slide; empty without any.

    A set is None where its names are ambiguous, as of classes ``a``, ``b`` and ``a|b``.
    """
    content = _decision_columns(folder)
    if "prediction_set" not in content:
        return {}
    return {name: found.prediction_set for name, found in _decisions(content, target).items()}


def _decision_columns(folder: str | os.PathLike[str]) -> Columns:
    """Read the names of slides and what was decided on them; empty without any."""
    file = Path(folder) / TABLE if Path(folder).is_dir() else Path(folder)
    if not file.is_file() or file.name != TABLE:
        return {}
    content, _ = read_parquet(file, ("slide_id", "prediction_set", "defer"))
    return content if len(content) > 1 else {}


def _decisions(content: Columns, target: Target) -> dict[str, Decision]:
    slide_ids = content.get("slide_id", ())
    nothing = [None] * len(slide_ids)
    sets, deferred = (content.get(name, nothing) for name in ("prediction_set", "defer"))
    return {
        slide_id: Decision(
            slide_id,
            _members(names, target.names) if names else None,
            None if defer is None else defer == "yes",
        )
        for slide_id, names, defer in zip(slide_ids, sets, deferred, strict=True)
    }


def write_instance_scores(path: str | os.PathLike[str], scores: InstanceScores) -> None:
    """Write the scores of one slide's instances as HDF5.

    Datasets: those of `SCORE_ARRAYS`, ``coords`` (with the attribute ``patch_size_level0``) and
    ``instance_labels``; those that the scores do not have are left out.

    Args:
        path: File to write; replaced whole where it exists.
        scores: Scores of the instances.
    """
    import h5py

    # In memory first: on a full disk HDF5 would end in an error of its own.
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name in SCORE_ARRAYS:
            if (array := getattr(scores, name)) is not None:
                file.create_dataset(name, data=array)
        if scores.coords is not None:
            coords = file.create_dataset("coords", data=scores.coords.astype(np.int64))
            if scores.patch_size is not None:
                coords.attrs["patch_size_level0"] = scores.patch_size
        if scores.instance_labels is not None:
            file.create_dataset("instance_labels", data=scores.instance_labels.astype(np.int64))
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def read_instance_scores(path: str | os.PathLike[str]) -> InstanceScores:
    """Read what `write_instance_scores` wrote.

    Raises:
        PredictionError: The file is missing or damaged, or lacks the attention.
    """
    import h5py

    file = Path(path)
    require_file(file, "instance scores")
    try:
        with h5py.File(file, "r") as content:
            found, patch_size = {}, None
            for name in _DATASETS:
                dataset = own_dataset(content, name, file)
                if dataset is not None:
                    refuse_missing_data(dataset, file)
                    found[name] = dataset[()]
                    if name == "coords":
                        patch_size = number_attribute(dataset.attrs, "patch_size_level0")
        if "coords" in found:
            found["coords"] = whole_coordinates(found["coords"], len(found["coords"]), file)
        side = None if patch_size is None else whole_side(patch_size, file)
    except Exception as error:  # a damaged file fails in many ways
        raise PredictionError(
            f"Expected instance scores as HDF5 in '{file}', but it cannot be read "
            f"({reason_of(error)}). Write it again."
        ) from error
    missing = [name for name in SCORE_ARRAYS[:2] if name not in found]
    if missing:
        raise PredictionError(
            f"Expected the dataset '{missing[0]}' in '{file}', but got {sorted(found)}. "
            "Write the instance scores again."
        )
    with damage_as(PredictionError, "instance scores", file, "Write them again."):
        return InstanceScores(**found, patch_size=side)


def _members(text: str, classes: Sequence[str]) -> tuple[str, ...] | None:
    """Find the classes, in their order, whose names make a text; None unless just one way does."""
    # Ways to make the beginnings of the text, by their length; two are enough to know better.
    ways: dict[int, list[tuple[str, ...]]] = {0: [()]}
    for name in classes:
        for end, found in list(ways.items()):
            part = name if end == 0 else f"{SET_SEPARATOR}{name}"
            if text.startswith(part, end):
                longer = [(*names, name) for names in found]
                ways[end + len(part)] = [*ways.get(end + len(part), []), *longer][:2]
    whole = ways.get(len(text), [])
    return whole[0] if len(whole) == 1 else None


def scores_path(folder: Path, slide_id: str) -> Path:
    """Return the file of the scores of a slide's instances."""
    return folder / "attention" / f"{file_name(slide_id)}.h5"
