"""The patches of a slide that one should look at."""

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.shapes import Float, Int

__all__ = ["KeyPatch", "KeyPatchKind", "key_patches", "write_key_patches"]

KeyPatchKind = Literal["attention", "evidence", "unsure"]
"""`attention`: the highest. `evidence`: the most for the class. `unsure`: attention that is high
and uncertain."""

_HIGH = 0.1
"""Share of the patches whose attention is called high."""


@dataclass(frozen=True, slots=True)
class KeyPatch:
    """A patch to look at.

    Args:
        kind: Why.
        rank: Its rank among those of its kind, from 1.
        patch: Its number in the bag.
        corner: Top-left corner (x, y) in level-0 pixels, where known.
        attention: Posterior mean of its attention.
        attention_std: Posterior standard deviation of its attention.
        evidence: Its evidence for the class (see `InstanceScores.score`), where there is any.
        evidence_std: Posterior standard deviation of that.
        label: Its class, where known.
    """

    kind: KeyPatchKind
    rank: int
    patch: int
    corner: tuple[int, int] | None
    attention: float
    attention_std: float
    evidence: float | None
    evidence_std: float | None
    label: int | None


def key_patches(
    scores: InstanceScores, class_index: int, most: int = 8
) -> dict[KeyPatchKind, tuple[KeyPatch, ...]]:
    r"""Choose the patches of highest attention, of most evidence, and those that are unsure.

    A patch is *unsure* where it matters and the model does not know how much: among the patches
    of high attention, those of the largest coefficient of variation $\sigma_k / \bar a_k$. High
    is what is above the slide's mean and among its highest tenth. The deviation of a positive
    quantity grows with its mean, so by $\sigma_k$ alone one would get the patches of highest
    attention once more; and by the coefficient alone, over all patches, those of no attention.

    Args:
        scores: Scores of a slide's instances.
        class_index: Class that the evidence is for.
        most: Most patches of a kind.

    Raises:
        ExplanationError: A score is infinite.

    Returns:
        The patches of each kind, the first to look at first. Without evidence, or where none is
        for the class, there is no such kind; nor are there unsure patches of a deterministic
        model, or where no attention is high.

    Example:
        >>> attention = np.array([0.05, 0.9, 0.05])
        >>> found = key_patches(InstanceScores(attention, attention / 10), 1, most=1)
        >>> [(kind, patches[0].patch) for kind, patches in found.items()]
        [('attention', 1), ('unsure', 1)]
    """
    attention = scores.attention_mean
    if np.isinf(attention).any():
        raise ExplanationError(
            "Expected finite scores, but got an infinite one. Check the model that gave them."
        )
    evidence = evidence_std = None
    chosen: dict[KeyPatchKind, Int[np.ndarray, " K"]] = {"attention": _highest(attention, most)}
    if scores.evidence_mean is not None:
        evidence = scores.score("evidence", class_index)
        evidence_std = scores.score_std("evidence", class_index)
        best = _highest(evidence, most)
        chosen["evidence"] = best[evidence[best] > 0]
    if scores.attention_std.any():
        high = _highest(attention, ceil(_HIGH * len(attention)))
        high = high[attention[high] > max(0.0, float(np.nanmean(attention)))]
        variation = scores.attention_std[high] / attention[high]
        chosen["unsure"] = high[_highest(variation, most)]
    coords, labels = scores.coords, scores.instance_labels
    return {
        kind: tuple(
            KeyPatch(
                kind=kind,
                rank=rank,
                patch=int(k),
                corner=None if coords is None else (int(coords[k, 0]), int(coords[k, 1])),
                attention=float(attention[k]),
                attention_std=float(scores.attention_std[k]),
                evidence=None if evidence is None else float(evidence[k]),
                evidence_std=None if evidence_std is None else float(evidence_std[k]),
                label=None if labels is None or labels[k] < 0 else int(labels[k]),
            )
            for rank, k in enumerate(indices, start=1)
        )
        for kind, indices in chosen.items()
        if len(indices)
    }


def write_key_patches(
    path: str | os.PathLike[str], slide_id: str, patches: Sequence[KeyPatch]
) -> None:
    """Write key patches as CSV, a row a patch; what is unknown is empty.

    Args:
        path: File to write; replaced whole where it exists.
        slide_id: Name of the slide.
        patches: The patches.
    """
    header = (
        *("slide_id", "kind", "rank", "patch", "x", "y", "attention_mean", "attention_std"),
        *("variation", "evidence", "evidence_std", "instance_label"),
    )
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([slide_id, *_cells(patch)] for patch in patches)


def _highest(values: Float[np.ndarray, " N"], most: int) -> Int[np.ndarray, " K"]:
    return np.argsort(-values, kind="stable")[:most]


def _cells(patch: KeyPatch) -> Iterator[str | int]:
    yield patch.kind
    yield patch.rank
    yield patch.patch
    yield from patch.corner or ("", "")
    ratio = patch.attention_std / patch.attention if patch.attention > 0 else None
    numbers = (patch.attention, patch.attention_std, ratio, patch.evidence, patch.evidence_std)
    for number in numbers:
        yield "" if number is None else f"{number:.6g}"
    yield "" if patch.label is None else patch.label
