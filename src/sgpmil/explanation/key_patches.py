"""Patches of a slide to look at: of high attention, most evidence, telling alone, uncertain."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.bags.tables import sheet_text
from sgpmil.errors import ExplanationError, SgpmilError
from sgpmil.evaluation.prediction import InstanceScores, ScoreKind
from sgpmil.explanation.maps import patch_side
from sgpmil.shapes import Float, Int, UInt8
from sgpmil.slides.reading import Slide

KeyPatchKind = Literal["attention", "evidence", "single", "against", "unsure"]
"""`attention`: the highest attention. `evidence`: the most evidence for the class. `single`: the
highest log-odds of the class for the patch alone. `against`: the most evidence against the class
or, of a model without evidence, the lowest log-odds. `unsure`: attention that is high and
uncertain."""

_HIGH = 0.1
"""Share of the patches whose attention is called high."""
_MOST_PIXELS = 192
"""Most pixels of the side of a patch's picture."""


@dataclass(frozen=True, slots=True)
class KeyPatch:
    """A patch to look at.

    Args:
        kind: Reason of the choice.
        rank: Its rank among those of its kind, from 1.
        patch: Its number in the bag.
        corner: Top-left corner (x, y) in level-0 pixels, where known.
        attention: Posterior mean of its attention.
        attention_std: Posterior standard deviation of its attention.
        evidence: Its evidence for the class (see `InstanceScores.score`), where there is any.
        evidence_std: Posterior standard deviation of that.
        label: Its class, where known.
        single: Log-odds of the class for a bag of the patch alone, where known.
        single_std: Posterior standard deviation of that.
        single_probability: Probability of the class for such a bag.
        novelty: How unlike the training patches it is, where known.
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
    single: float | None = None
    single_std: float | None = None
    single_probability: float | None = None
    novelty: float | None = None

    @property
    def variation(self) -> float:
        """Coefficient of variation of its attention: standard deviation by mean."""
        return self.attention_std / max(self.attention, 1e-300)


def key_patches(
    scores: InstanceScores, class_index: int, most: int = 8
) -> dict[KeyPatchKind, tuple[KeyPatch, ...]]:
    r"""Choose the patches that stand out by attention, by evidence and alone, and the unsure.

    A patch is *unsure* where it matters and the model does not know how much: among the patches
    of high attention, those of the largest coefficient of variation $\sigma_k / \bar a_k$. High
    attention is above the slide's mean and among its highest tenth. The deviation of a positive
    quantity grows with its mean, so $\sigma_k$ alone would choose the patches of highest attention
    once more; and the coefficient alone, over all patches, those of no attention.

    Raises:
        ExplanationError: A score is infinite.

    Returns:
        The patches of each kind, the first to look at first. Without evidence or single scores,
        or where none is for the class, there is no such kind; nor are there unsure patches of a
        deterministic model, or where no attention is high.

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
    chosen: dict[KeyPatchKind, Int[np.ndarray, " K"]] = {"attention": _highest(attention, most)}
    of_class: tuple[Literal["evidence", "single"], ...] = ("evidence", "single")
    for kind in of_class:
        if kind in scores.kinds:
            values = scores.score(kind, class_index)
            best = _highest(values, most)
            chosen[kind] = best[values[best] > 0]
    if scores.attention_std.any():
        high = _highest(attention, ceil(_HIGH * len(attention)))
        high = high[attention[high] > max(0.0, float(np.nanmean(attention)))]
        variation = scores.attention_std[high] / attention[high]
        chosen["unsure"] = high[_highest(variation, most)]
    found = _described(scores, class_index, chosen)
    return {kind: patches for kind, patches in found.items() if patches}


def contrasting_patches(
    scores: InstanceScores, class_index: int, most: int = 7
) -> dict[KeyPatchKind, tuple[KeyPatch, ...]]:
    r"""Choose the patches that speak for a class, against it, and those that are unsure.

    For and against are the largest and the most negative evidence $m_{k,c}$ (see
    `InstanceScores.score`) or, of a model without evidence, log-odds of the patch alone. Where
    there are neither, the patches of highest attention are for the class, and none against. A
    deterministic model has no unsure patches (see `key_patches`).
    Of patches of one kind whose centres lie closer than half a side, the first stands for all, so
    that a kind does not show one place many times. Scores that are not finite are left out.

    Returns:
        The patches of each kind that the model can have, which may be none.
    """
    attention = scores.attention_mean
    kind = scores.best_kind
    if kind == "attention":
        order = np.argsort(-attention, kind="stable")
        chosen: dict[KeyPatchKind, Int[np.ndarray, " K"]] = {
            "attention": _apart(scores, order[np.isfinite(attention[order])], most)
        }
    else:
        values = scores.score(kind, class_index)
        highest = np.argsort(-values, kind="stable")
        lowest = np.argsort(values, kind="stable")
        chosen = {
            "evidence" if kind == "evidence" else "single": _apart(
                scores, highest[values[highest] > 0], most
            ),
            "against": _apart(scores, lowest[values[lowest] < 0], most),
        }
    if scores.attention_std.any():
        unsure = key_patches(scores, class_index, most).get("unsure", ())
        finite = [patch.patch for patch in unsure if np.isfinite(patch.variation)]
        chosen["unsure"] = _apart(scores, np.array(finite, dtype=np.int64), most)
    return _described(scores, class_index, chosen)


def cut_patches(
    slide: Slide, patches: Iterable[KeyPatch], side: int
) -> dict[int, UInt8[np.ndarray, "s s 3"]]:
    """Cut patches from a slide, at most 192 pixels wide.

    Args:
        slide: The slide.
        patches: The patches; those of unknown place are left out.
        side: Side of a patch in level-0 pixels.

    Returns:
        Picture of each patch, by its number in the bag.

    Raises:
        SlideError: The slide cannot be read.
    """
    places = {patch.patch: patch.corner for patch in patches if patch.corner is not None}
    size = min(side, _MOST_PIXELS)  # never enlarged
    return {number: slide.read_patch(x, y, side, size) for number, (x, y) in places.items()}


def write_key_patches(
    path: str | os.PathLike[str], slide_id: str, patches: Sequence[KeyPatch]
) -> None:
    """Write key patches as CSV, a row per patch; unknown values are empty.

    Args:
        path: File to write; replaced whole where it exists.
        slide_id: Name of the slide.
        patches: The patches.
    """
    header = (
        *("slide_id", "kind", "rank", "patch", "x", "y", "attention_mean", "attention_std"),
        *("variation", "evidence", "evidence_std", "instance_label"),
        *("single", "single_std", "single_probability", "novelty"),
    )
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(sheet_text(header, ([slide_id, *_cells(patch)] for patch in patches)))


def _highest(values: Float[np.ndarray, " N"], most: int) -> Int[np.ndarray, " K"]:
    return np.argsort(-values, kind="stable")[:most]


def _apart(
    scores: InstanceScores, order: Int[np.ndarray, " M"], most: int
) -> Int[np.ndarray, " K"]:
    """Keep the first patches that lie apart from those before them."""
    try:
        side = None if scores.coords is None else patch_side(scores)
    except SgpmilError:  # of patches of unknown size nothing is known to overlap
        side = None
    if scores.coords is None or side is None:
        return order[:most]
    kept: list[int] = []
    while len(order) and len(kept) < most:
        first = int(order[0])
        kept.append(first)
        steps = (scores.coords[order[1:]] - scores.coords[first]).astype(np.float64)
        order = order[1:][np.hypot(*steps.T) >= side / 2]
    return np.array(kept, dtype=np.int64)


def _described(
    scores: InstanceScores, class_index: int, chosen: Mapping[KeyPatchKind, Int[np.ndarray, " K"]]
) -> dict[KeyPatchKind, tuple[KeyPatch, ...]]:
    columns: dict[str, Float[np.ndarray, " N"] | None] = {
        **dict.fromkeys(("evidence", "evidence_std", "single", "single_std")),
        "single_probability": None,
        "novelty": scores.novelty,
    }
    of_class: tuple[ScoreKind, ...] = ("evidence", "single")
    for score in of_class:
        if score in scores.kinds:
            columns[score] = scores.score(score, class_index)
            columns[f"{score}_std"] = scores.score_std(score, class_index)
    if "single" in scores.kinds:
        columns["single_probability"] = scores.single_probability(class_index)
    coords, labels = scores.coords, scores.instance_labels
    return {
        kind: tuple(
            KeyPatch(
                kind=kind,
                rank=rank,
                patch=int(k),
                corner=None if coords is None else (int(coords[k, 0]), int(coords[k, 1])),
                attention=float(scores.attention_mean[k]),
                attention_std=float(scores.attention_std[k]),
                label=None if labels is None or labels[k] < 0 else int(labels[k]),
                **{n: None if v is None else float(v[k]) for n, v in columns.items()},
            )
            for rank, k in enumerate(indices, start=1)
        )
        for kind, indices in chosen.items()
    }


def _cells(patch: KeyPatch) -> Iterator[str | int]:
    yield patch.kind
    yield patch.rank
    yield patch.patch
    yield from patch.corner or ("", "")
    ratio = patch.attention_std / patch.attention if patch.attention > 0 else None
    numbers = (patch.attention, patch.attention_std, ratio, patch.evidence, patch.evidence_std)
    yield from map(_cell, numbers)
    yield "" if patch.label is None else patch.label
    of_itself = (patch.single, patch.single_std, patch.single_probability, patch.novelty)
    yield from map(_cell, of_itself)


def _cell(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"
