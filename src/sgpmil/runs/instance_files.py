"""The scores of a slide's instances on disk, as HDF5."""

import os
from pathlib import Path

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.errors import PredictionError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.runs.prediction_files import require_file

__all__ = ["read_instance_scores", "write_instance_scores"]

_SCORES = ("attention_mean", "attention_std", "evidence_mean", "evidence_std", "margin_std")
_DATASETS = (*_SCORES, "coords", "instance_labels")


def write_instance_scores(path: str | os.PathLike[str], scores: InstanceScores) -> None:
    """Write the scores of one slide's instances as HDF5.

    Datasets: ``attention_mean``, ``attention_std``, ``evidence_mean``, ``evidence_std``,
    ``margin_std``, ``coords`` (with the attribute ``patch_size_level0``) and ``instance_labels``;
    those that the scores do not have are left out.

    Args:
        path: File to write; replaced whole where it exists.
        scores: Scores of the instances.
    """
    import h5py

    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        for name in _SCORES:
            if (array := getattr(scores, name)) is not None:
                file.create_dataset(name, data=array)
        if scores.coords is not None:
            coords = file.create_dataset("coords", data=scores.coords.astype(np.int64))
            if scores.patch_size is not None:
                coords.attrs["patch_size_level0"] = scores.patch_size
        if scores.instance_labels is not None:
            file.create_dataset("instance_labels", data=scores.instance_labels.astype(np.int64))


def read_instance_scores(path: str | os.PathLike[str]) -> InstanceScores:
    """Read what `write_instance_scores` wrote.

    Args:
        path: File to read.

    Raises:
        PredictionError: The file is missing or damaged, or lacks the attention.
    """
    import h5py

    file = Path(path)
    require_file(file, "instance scores")
    try:
        with h5py.File(file, "r") as content:
            found = {name: content[name][()] for name in _DATASETS if name in content}
            attributes = content["coords"].attrs if "coords" in content else {}
            patch_size = attributes.get("patch_size_level0")
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise PredictionError(
            f"Expected instance scores as HDF5 in '{file}', but it cannot be read ({error}). "
            "Write it again."
        ) from error
    missing = [name for name in _SCORES[:2] if name not in found]
    if missing:
        raise PredictionError(
            f"Expected the dataset '{missing[0]}' in '{file}', but got {sorted(found)}. "
            "Write the instance scores again."
        )
    return InstanceScores(
        **found,
        patch_size=None if patch_size is None else int(patch_size),
    )
