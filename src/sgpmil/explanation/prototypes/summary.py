"""Prototypes of a set of slides: the patches and the effect of each, as data and as files."""

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.errors import ExplanationError
from sgpmil.explanation.prototypes.similarity import SimilarityMeasure, SlidePrototypes

PALETTE = (
    "#88CCEE",
    "#E69F00",
    "#1B2A6B",
    "#EE6677",
    "#EEDD88",
    "#4477AA",
    "#CC3311",
    "#882255",
    "#5C3A1E",
    "#000000",
)
"""Colours that the colour-blind can tell apart from each other, from grey and from white.

Taken from the schemes of Tol and of Okabe and Ito such that, as normal, protan, deutan and tritan
eyes see them, every two differ by more than 20 in CIELAB.
"""

NEUTRAL = "#BBBBBB"
"""The colour of prototypes that are used less."""


def prototype_colours(order: Sequence[int]) -> dict[int, str]:
    """Give each prototype its colour.

    Args:
        order: Numbers of the prototypes, the most used first.

    Example:
        >>> prototype_colours([7, 3])
        {7: '#88CCEE', 3: '#E69F00'}
    """
    shown = len(PALETTE)
    return {number: PALETTE[rank] if rank < shown else NEUTRAL for rank, number in enumerate(order)}


@dataclass(frozen=True, slots=True)
class PatchReference:
    """Place of a patch.

    Args:
        slide_id: Name of its slide.
        instance: Its number in the bag.
        similarity: Similarity to its prototype.
        corner: Top-left corner (x, y) in level-0 pixels, where known.
        side: Side in level-0 pixels, where known.
    """

    slide_id: str
    instance: int
    similarity: float
    corner: tuple[int, int] | None = None
    side: int | None = None


@dataclass(frozen=True, slots=True)
class PrototypeSummary:
    r"""Patches and effect of one prototype. Means over no patch are NaN.

    Args:
        index: Number m of the inducing point.
        num_patches: Number of patches that are most like it.
        num_slides: Number of slides with such a patch.
        num_labelled: Number of its patches whose label is known.
        num_cancerous: Number of those that are positive.
        mean_attention: Mean attention of its patches.
        relative_attention: Mean of their attention relative to the mean of their slide: 1 is that
            of an average patch, however many the slide has.
        own_contribution: Mean of $k(x_i, z_m)\,\alpha_m$ over its own patches.
        overall_contribution: The same over all patches.
        logit_mean: Mean of $\mathrm E f(x_i)$ over its patches.
        logit_at: $\mathrm E f(z_m)$, the attention logit at the inducing point itself.
        logit_at_sd: Posterior standard deviation of $f(z_m)$.
        nuclei: Number of nuclei of each of the explanation's types in its patches.
        examples: The patches that are most like it, the most similar first.
    """

    index: int
    num_patches: int
    num_slides: int
    num_labelled: int
    num_cancerous: int
    mean_attention: float
    relative_attention: float
    own_contribution: float
    overall_contribution: float
    logit_mean: float
    logit_at: float
    logit_at_sd: float
    nuclei: tuple[int, ...] = ()
    examples: tuple[PatchReference, ...] = ()

    def cancer_share(self, fewest: int = 1) -> float:
        """Give the share of its labelled patches that are positive.

        Args:
            fewest: Fewest labelled patches for which a share is given; below it is NaN.
        """
        if self.num_labelled < max(1, fewest):
            return math.nan
        return self.num_cancerous / self.num_labelled


@dataclass(frozen=True, slots=True, eq=False)
class PrototypeExplanation:
    r"""The prototypes of slides that are explained together: those of a fold's test set.

    Args:
        measure: Measure of similarity of patches to inducing points.
        slides: Prototypes of each slide's patches.
        prototypes: All prototypes, the most used first and the unused last.
        mean_logit: Mean of $\mathrm E f(x_i)$ over all patches.
        nucleus_types: Names of the types of nuclei.
        missing: Reasons why slides count in no prototype, in sentences.
    """

    measure: SimilarityMeasure
    slides: Mapping[str, SlidePrototypes]
    prototypes: tuple[PrototypeSummary, ...]
    mean_logit: float
    nucleus_types: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[PrototypeSummary, ...]:
        """Prototypes that some patch is most like, the most used first."""
        return tuple(p for p in self.prototypes if p.num_patches)

    @property
    def unused(self) -> int:
        """Number of prototypes that no patch is most like."""
        return len(self.prototypes) - len(self.used)

    @property
    def num_patches(self) -> int:
        """Number of patches of all slides."""
        return sum(p.num_patches for p in self.prototypes)

    @property
    def num_unlabelled(self) -> int:
        """Number of patches whose label is unknown."""
        return self.num_patches - sum(p.num_labelled for p in self.prototypes)

    @property
    def colours(self) -> dict[int, str]:
        """Colour of each prototype, the same on every slide."""
        return prototype_colours([p.index for p in self.prototypes])

    def colour_of(self, index: int) -> str:
        """Give the colour of a prototype."""
        return self.colours.get(index, NEUTRAL)


def write_prototype_table(
    path: str | os.PathLike[str], explanation: PrototypeExplanation, *, fewest_labelled: int = 1
) -> None:
    """Write a line a prototype as CSV, the most used first and the unused last.

    What is not known is left empty. The examples are ``slide:instance``, the most similar first.

    Args:
        path: File to write; replaced where it exists.
        explanation: The prototypes.
        fewest_labelled: Fewest labelled patches for which a share of cancer is written.

    Raises:
        OSError: The file cannot be written; then nothing is left behind.
    """
    rows = [
        _row(rank, prototype, explanation, fewest_labelled)
        for rank, prototype in enumerate(explanation.prototypes, start=1)
    ]
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(
    rank: int, prototype: PrototypeSummary, explanation: PrototypeExplanation, fewest: int
) -> dict[str, str]:
    numbers: dict[str, float] = {
        "cancer_share": prototype.cancer_share(fewest),
        "mean_attention": prototype.mean_attention,
        "relative_attention": prototype.relative_attention,
        "own_contribution": prototype.own_contribution,
        "overall_contribution": prototype.overall_contribution,
        "logit_mean": prototype.logit_mean,
        "logit_at_prototype": prototype.logit_at,
        "logit_at_prototype_sd": prototype.logit_at_sd,
    }
    nuclei = zip(explanation.nucleus_types, prototype.nuclei, strict=True)
    return {
        "rank": str(rank),
        "prototype": str(prototype.index),
        "colour": explanation.colour_of(prototype.index),
        "patches": str(prototype.num_patches),
        "slides": str(prototype.num_slides),
        "labelled_patches": str(prototype.num_labelled),
        "cancerous_patches": str(prototype.num_cancerous),
        **{name: "" if math.isnan(value) else f"{value:.6g}" for name, value in numbers.items()},
        **{f"nuclei_{name}": str(count) for name, count in nuclei},
        "examples": " ".join(f"{p.slide_id}:{p.instance}" for p in prototype.examples),
    }


def write_prototypes(path: str | os.PathLike[str], explanation: PrototypeExplanation) -> None:
    """Write prototypes as data, from which `read_prototypes` reads the same again.

    The file is a NumPy archive: ``assigned`` and ``similarity`` of all patches, slide after
    slide, and everything else as JSON in ``summary``.

    Args:
        path: File to write (.npz); replaced where it exists.
        explanation: The prototypes.
    """
    slides = list(explanation.slides.values())
    summary = {
        "measure": explanation.measure,
        "slides": {slide.slide_id: slide.num_instances for slide in slides},
        "prototypes": [asdict(prototype) for prototype in explanation.prototypes],
        "mean_logit": explanation.mean_logit,
        "nucleus_types": explanation.nucleus_types,
        "missing": explanation.missing,
    }
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            summary=np.array(json.dumps(summary)),
            assigned=np.concatenate([slide.assigned for slide in slides]),
            similarity=np.concatenate([slide.similarity for slide in slides]),
        )


def read_prototypes(path: str | os.PathLike[str]) -> PrototypeExplanation:
    """Read prototypes that `write_prototypes` wrote.

    Raises:
        ExplanationError: It is missing, damaged, or something else.
    """
    try:
        with np.load(path, allow_pickle=False) as content:
            found = json.loads(str(content["summary"]))
            ends = np.cumsum(list(found["slides"].values()))[:-1]
            assigned = np.split(content["assigned"], ends)
            similarity = np.split(content["similarity"], ends)
        slides = {
            slide_id: SlidePrototypes(slide_id, numbers, values)
            for slide_id, numbers, values in zip(found["slides"], assigned, similarity, strict=True)
        }
        return PrototypeExplanation(
            measure=found["measure"],
            slides=slides,
            prototypes=tuple(_summary(row) for row in found["prototypes"]),
            mean_logit=found["mean_logit"],
            nucleus_types=tuple(found["nucleus_types"]),
            missing=tuple(found["missing"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise ExplanationError(
            f"Expected the prototypes of a fold in {path}, but they cannot be read ({error}). "
            "Write them again with sgpmil explain --overwrite."
        ) from error


def _summary(row: dict[str, Any]) -> PrototypeSummary:
    examples = tuple(
        PatchReference(
            **{**patch, "corner": None if patch["corner"] is None else tuple(patch["corner"])}
        )
        for patch in row["examples"]
    )
    return PrototypeSummary(**{**row, "nuclei": tuple(row["nuclei"]), "examples": examples})
