"""Scores of a slide's patches as a table, one row per patch."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.bags.tables import to_spreadsheet
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.instance_columns import instance_columns
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.maps import patch_side, placed_coords
from sgpmil.shapes import Float, Int

PLACE_COLUMNS = ("slide_id", "patch", "x", "y", "side")
"""The columns that say which patch it is; those that follow are its scores."""


def patch_table(
    slide_id: str,
    scores: InstanceScores,
    class_names: Sequence[str],
    *,
    prototypes: Int[np.ndarray, " N"] | None = None,
    similarity: Float[np.ndarray, " N"] | None = None,
) -> Any:
    """Put the scores of a slide's patches into a `pyarrow.Table`.

    ========================================  ==================================================
    column                                    holds
    ========================================  ==================================================
    ``slide_id``, ``patch``                   the slide, and the patch's number in its bag
    ``x``, ``y``, ``side``                    where it lies, in level-0 pixels
    ``attention_mean``, ``attention_std``     posterior of its attention
    ``evidence_<class>``, ``…_std``           its share in the class's logit
    ``margin_<class>``, ``…_std``             that share less the mean of the other classes'
                                              (see `InstanceScores.score`): what the evidence
                                              map shows
    ``single_<class>``, ``…_std``             log-odds that the model gives the class for a bag
                                              of the patch alone
    ``single_probability_<class>``            probability of the class for such a bag
    ``novelty``                               how unlike the training patches it is; 1 is the
                                              level that 1 % of them exceed
    ``instance_label``                        its class, where known
    ``prototype``, ``prototype_similarity``   the inducing point that is most like it
    ========================================  ==================================================

    What the model does not give has no column. Numbers keep the precision that they have.

    Args:
        slide_id: Name of the slide.
        scores: Scores of its patches, with coordinates.
        class_names: Name of each class.
        prototypes: Inducing point of each patch; negative where there is none.
        similarity: Similarity of the patch to it.

    Raises:
        ExplanationError: The scores have no coordinates, the classes are not those of the
            scores, or the prototypes are not those of the patches.
    """
    import pyarrow as pa

    coords, side = placed_coords(scores), patch_side(scores)
    num = scores.num_instances
    columns: list[tuple[str, Any]] = [
        ("slide_id", pa.array([slide_id] * num, pa.string())),
        ("patch", pa.array(np.arange(num))),
        ("x", pa.array(coords[:, 0].astype(np.int64))),
        ("y", pa.array(coords[:, 1].astype(np.int64))),
        ("side", pa.array(np.full(num, side))),
    ]
    for array in (scores.evidence_mean, scores.single_mean):
        if array is not None:
            _check_classes(class_names, array.shape[1])
    columns += [(name, _numbers(values)) for name, values in instance_columns(scores, class_names)]
    columns += _whole_numbers("instance_label", scores.instance_labels, num)
    columns += _whole_numbers("prototype", prototypes, num)
    if similarity is not None:
        _check_length("prototype_similarity", len(similarity), num)
        columns.append(("prototype_similarity", _numbers(similarity)))
    _check_names([name for name, _ in columns])
    return pa.table([column for _, column in columns], names=[name for name, _ in columns])


def write_patch_table(
    path: str | os.PathLike[str],
    slide_id: str,
    scores: InstanceScores,
    class_names: Sequence[str],
    *,
    prototypes: Int[np.ndarray, " N"] | None = None,
    similarity: Float[np.ndarray, " N"] | None = None,
) -> None:
    """Write the table of `patch_table` as Parquet or CSV.

    Parquet also stores the names of the classes, as JSON under ``class_names`` in the schema's
    metadata. In CSV, what is unknown is empty, and every number has as many digits as it takes
    to read the same number again.

    Args:
        path: File to write (.parquet or .csv); replaced whole where it exists.
        slide_id: Name of the slide.
        scores: Scores of its patches, with coordinates.
        class_names: Name of each class.
        prototypes: Inducing point of each patch; negative where there is none.
        similarity: Similarity of the patch to it.

    Raises:
        ExplanationError: See `patch_table`; or the file is to be of another format.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".parquet", ".csv"):
        raise ExplanationError(
            f"Expected a file ending in '.parquet' or '.csv', but got '{Path(path).name}'. "
            "Choose one of the two."
        )
    table = patch_table(slide_id, scores, class_names, prototypes=prototypes, similarity=similarity)
    with atomic_path(path) as temporary:
        if suffix == ".csv":
            from pyarrow import csv

            names = [to_spreadsheet(name) for name in table["slide_id"].to_pylist()]
            place = table.schema.get_field_index("slide_id")
            csv.write_csv(table.set_column(place, "slide_id", [names]), temporary)
        else:
            import pyarrow.parquet as pq

            metadata = {"class_names": json.dumps(list(class_names))}
            pq.write_table(table.replace_schema_metadata(metadata), temporary)


def _numbers(values: Float[np.ndarray, " N"]) -> Any:
    """Make a column of single or double precision: few programs read halves or swapped bytes."""
    import pyarrow as pa

    return pa.array(values.astype(np.float32 if values.dtype.itemsize <= 4 else np.float64))


def _whole_numbers(
    name: str, values: Int[np.ndarray, " N"] | None, num: int
) -> list[tuple[str, Any]]:
    """Make a column in which negative numbers, which stand for unknown, are missing."""
    import pyarrow as pa

    if values is None:
        return []
    _check_length(name, len(values), num)
    return [(name, pa.array(values.astype(np.int64), mask=np.asarray(values < 0)))]


def _check_length(name: str, length: int, num: int) -> None:
    if length != num:
        raise ExplanationError(
            f"Expected a '{name}' for each of the {num} patches, but got {length}. "
            "Take both from the same slide."
        )


def _check_classes(class_names: Sequence[str], num_classes: int) -> None:
    if len(class_names) != num_classes:
        raise ExplanationError(
            f"Expected the names of {num_classes} classes, of which there are scores, but got "
            f"{len(class_names)}. Take the names from the same run."
        )


def _check_names(names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ExplanationError(
            f"Expected classes whose columns have different names, but '{name}' would appear "
            f"{count} times. Rename the classes."
        )
