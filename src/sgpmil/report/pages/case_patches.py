"""The patches that a case report shows: for the prediction, against it, and unsure."""

from dataclasses import dataclass
from math import floor, log10
from typing import Literal

import numpy as np

from sgpmil.errors import SgpmilError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.key_patches import key_patches
from sgpmil.explanation.map_layers import map_layers
from sgpmil.explanation.maps import patch_side
from sgpmil.report.pages.number_texts import told
from sgpmil.shapes import Float, Int

__all__ = ["CasePatch", "PatchGroup", "PatchKind", "patch_groups"]

PatchKind = Literal["for", "against", "unsure"]


@dataclass(frozen=True, slots=True)
class CasePatch:
    """A patch to look at.

    Args:
        mark: Its sign on the map, such as F1.
        index: Its number in the bag.
        corner: Top-left corner in level-0 pixels, where known.
        score: The score it was chosen for, with its deviation, in words.
    """

    mark: str
    index: int
    corner: tuple[int, int] | None
    score: str


@dataclass(frozen=True, slots=True)
class PatchGroup:
    """Patches that were chosen for the same reason.

    Args:
        kind: The reason.
        title: It in words.
        patches: The patches, the first to look at first.
        none: What is said where there are none.
    """

    kind: PatchKind
    title: str
    patches: tuple[CasePatch, ...]
    none: str = ""


def patch_groups(
    scores: InstanceScores, class_index: int, class_name: str, most: int = 7
) -> tuple[PatchGroup, ...]:
    r"""Choose the patches that speak for a class, against it, and those the model is unsure of.

    For and against are the largest and the most negative evidence $m_{k,c}$ (see
    `InstanceScores.score`), in the units of the maps (`map_layers`). A model without evidence has
    the patches of highest attention instead, and none against. Unsure are patches of high
    attention with the largest $\sigma_k / \bar a_k$ (see `key_patches`); a deterministic model
    has none. Of patches of one group whose centres lie closer than half a side, the first stands
    for all, so that a group does not show one place many times. Scores that are not finite are
    left out.

    Args:
        scores: Scores of the slide's instances.
        class_index: The predicted class.
        class_name: Its name.
        most: Most patches of a group.
    """
    unsure = key_patches(scores, class_index, most).get("unsure", ())
    # In the units of the maps, so that numbers and colours say the same.
    layers = {layer.kind: layer for layer in map_layers(scores, class_index, class_name)}
    nothing = np.zeros(scores.num_instances)
    if "evidence" not in layers:
        attention = layers["attention"].values
        spread = layers["attention_std"].values if "attention_std" in layers else nothing
        order = _apart(scores, np.argsort(-attention, kind="stable"), attention, most)
        title = "Highest attention (as on the map)"
        groups = [PatchGroup("for", title, _chosen("for", scores, order, attention, spread))]
    else:
        evidence = layers["evidence"].values
        spread = layers["evidence_std"].values if "evidence_std" in layers else nothing
        highest = np.argsort(-evidence, kind="stable")
        lowest = np.argsort(evidence, kind="stable")
        own = _apart(scores, highest[evidence[highest] > 0], evidence, most)
        other = _apart(scores, lowest[evidence[lowest] < 0], evidence, most)
        groups = [
            PatchGroup(
                "for",
                f"Most evidence for “{class_name}” (as on the map)",
                _chosen("for", scores, own, evidence, spread, signed=True),
                f"No patch speaks for “{class_name}”.",
            ),
            PatchGroup(
                "against",
                f"Most evidence against “{class_name}”",
                _chosen("against", scores, other, evidence, spread, signed=True),
                f"No patch speaks against “{class_name}”.",
            ),
        ]
    if not scores.attention_std.any():
        return tuple(groups)
    indices = np.array([patch.patch for patch in unsure], dtype=np.int64)
    ratio = scores.attention_std / np.maximum(scores.attention_mean, 1e-300)
    indices = _apart(scores, indices, ratio, most)
    groups.append(
        PatchGroup(
            "unsure",
            "Looked at, but unsure how much it counts (sd ÷ mean of the attention)",
            _chosen("unsure", scores, indices, ratio, nothing),
            "No patch of high attention is unsure.",
        )
    )
    return tuple(groups)


def _apart(
    scores: InstanceScores,
    order: Int[np.ndarray, " M"],
    values: Float[np.ndarray, " N"],
    most: int,
) -> Int[np.ndarray, " K"]:
    """Keep the first patches that have a finite value and lie apart from those before them."""
    left = order[np.isfinite(values[order])]
    try:
        side = None if scores.coords is None else patch_side(scores)
    except SgpmilError:  # of patches of unknown size nothing is known to overlap
        side = None
    if scores.coords is None or side is None:
        return left[:most]
    kept: list[int] = []
    while len(left) and len(kept) < most:
        first = int(left[0])
        kept.append(first)
        steps = (scores.coords[left[1:]] - scores.coords[first]).astype(np.float64)
        left = left[1:][np.hypot(*steps.T) >= side / 2]
    return np.array(kept, dtype=np.int64)


def _chosen(
    kind: PatchKind,
    scores: InstanceScores,
    indices: Int[np.ndarray, " K"],
    values: Float[np.ndarray, " N"],
    spread: Float[np.ndarray, " N"],
    *,
    signed: bool = False,
) -> tuple[CasePatch, ...]:
    patches = []
    for rank, index in enumerate(indices.tolist(), start=1):
        corner = None
        if scores.coords is not None:
            x, y = scores.coords[index].tolist()
            corner = (x, y)
        text = _told(float(values[index]), float(spread[index]), signed)
        patches.append(CasePatch(f"{kind[0].upper()}{rank}", index, corner, text))
    return tuple(patches)


def _told(value: float, std: float, signed: bool) -> str:
    digits = max(0, 2 - floor(log10(abs(value)))) if value else 0
    digits = min(digits, 2 if abs(value) >= 0.1 else 4)
    text = told(value, digits)
    if signed and value > 0:
        text = f"+{text}"
    return f"{text} ± {told(std, digits)}" if std > 0 else text
