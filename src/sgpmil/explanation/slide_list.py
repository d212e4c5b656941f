"""The test slides of a run as a table, the least certain first."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.runs.material import RunMaterial

__all__ = ["write_slide_list"]

_TOP = 10
"""Patches of highest attention of which the table says how many are positive."""


def write_slide_list(path: Path, material: RunMaterial, folds: Sequence[str] = ()) -> None:
    """Write a row a test slide as CSV, the least certain first; what is unknown is empty.

    Uncertainty is the entropy of the mean probabilities. Where the labels of all patches are
    known, the positive ones are counted, among all and among the ten of highest attention.

    Args:
        path: File to write; replaced whole where it exists.
        material: The run.
        folds: Folds to list; all by default.
    """
    names = material.class_names
    rows = []
    for fold, prediction in material.predictions():
        if folds and fold.name not in folds:
            continue
        predicted = prediction.predicted_class
        label = prediction.label
        rows.append(
            {
                "slide_id": prediction.slide_id,
                "case_id": prediction.case_id,
                "fold": fold.name,
                "label": "" if label is None else names[label],
                "predicted": names[predicted],
                "correct": "" if label is None else str(predicted == label).lower(),
                "probability": _number(prediction.probs[predicted]),
                "std": _number(prediction.std[predicted]),
                "entropy": _number(prediction.entropy),
                "expected_entropy": _number(prediction.expected_entropy),
                "mutual_information": _number(prediction.mutual_information),
                **_patch_counts(prediction.instances),
            }
        )
    rows.sort(key=lambda row: (-float(row["entropy"]), row["slide_id"]))
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _patch_counts(scores: InstanceScores | None) -> dict[str, str]:
    """Count the patches, and the positive ones among all and among those of highest attention."""
    counts = {"patches": "", "positive_patches": "", f"positive_in_top_{_TOP}": ""}
    if scores is None:
        return counts
    counts["patches"] = str(scores.num_instances)
    labels = scores.instance_labels
    if labels is not None and (labels >= 0).all():
        top = np.argsort(-scores.attention_mean, kind="stable")[:_TOP]
        counts["positive_patches"] = str(int((labels > 0).sum()))
        counts[f"positive_in_top_{_TOP}"] = str(int((labels[top] > 0).sum()))
    return counts


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6g}"
