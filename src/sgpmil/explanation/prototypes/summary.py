"""Prototypes of a set of slides: the patches and the effect of each, as data and as files."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.bags.readers.numpy_files import load_npz
from sgpmil.bags.tables import sheet_text
from sgpmil.errors import ExplanationError, reason_of
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
"""The colour of prototypes that are not in use."""


@dataclass(frozen=True, slots=True)
class PatchReference:
    """Place of a patch.

    Args:
        slide_id: Name of its slide.
        instance: Its number in the bag.
        similarity: Similarity to its prototype; 1 for the prototype itself.
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
        num_positive: Number of those that are positive.
        mean_attention: Mean attention of its patches.
        relative_attention: Mean of their attention relative to the mean of their slide: 1 is that
            of an average patch, however many the slide has.
        attention_part: Its part in the attention, the mean over slides of
            $\sum_i (a_i - 1/N)\, k(x_i, z_m)\,\alpha_m$ with attention $a$ that sums to 1: how far
            it lifts the logit where the model looks above that of an average patch of the slide.
        own_contribution: Mean of $k(x_i, z_m)\,\alpha_m$ over its own patches.
        overall_contribution: The same over all patches.
        logit_mean: Mean of $\mathrm E f(x_i)$ over its patches.
        logit_at: $\mathrm E f(z_m)$, the attention logit at the inducing point itself.
        logit_at_sd: Posterior standard deviation of $f(z_m)$.
        group: Rank of its group of similar prototypes, the most used first; None where it is not
            in use.
        nuclei: Number of nuclei of each of the explanation's types in its patches.
        examples: The patches of other slides that are most like it, the most similar first.
        origin: The training patch that it is; None where it is a free inducing point.
        single: Log-odds of each class for a bag of that patch alone; none for a free point.
        single_sd: Their standard deviations.
    """

    index: int
    num_patches: int
    num_slides: int
    num_labelled: int
    num_positive: int
    mean_attention: float
    relative_attention: float
    attention_part: float
    own_contribution: float
    overall_contribution: float
    logit_mean: float
    logit_at: float
    logit_at_sd: float
    group: int | None = None
    nuclei: tuple[int, ...] = ()
    examples: tuple[PatchReference, ...] = ()
    origin: PatchReference | None = None
    single: tuple[float, ...] = ()
    single_sd: tuple[float, ...] = ()

    @property
    def colour(self) -> str:
        """Colour of its group."""
        return NEUTRAL if self.group is None else PALETTE[self.group]

    def positive_share(self, fewest: int = 1) -> float:
        """Give the share of its labelled patches that are positive.

        Args:
            fewest: Fewest labelled patches for which a share is given; below it is NaN.
        """
        if self.num_labelled < max(1, fewest):
            return math.nan
        return self.num_positive / self.num_labelled


@dataclass(frozen=True, slots=True, eq=False)
class PrototypeExplanation:
    r"""The prototypes of slides that are explained together: those of a fold's test set.

    Args:
        measure: Measure of similarity of patches to inducing points.
        slides: Prototypes of each slide's patches.
        prototypes: All prototypes, the most used first and the unused last.
        mean_logit: Mean of $\mathrm E f(x_i)$ over all patches.
        attention_gap: Mean over slides of $\sum_i (a_i - 1/N)\, \mathrm E f(x_i)$: the sum of all
            prototypes' `attention_part` and that of the prior mean, which is 0 where it is
            constant.
        class_names: Names of the classes.
        nucleus_types: Names of the types of nuclei.
        missing: Reasons why slides count in no prototype, in sentences.
    """

    measure: SimilarityMeasure
    slides: Mapping[str, SlidePrototypes]
    prototypes: tuple[PrototypeSummary, ...]
    mean_logit: float
    attention_gap: float = math.nan
    class_names: tuple[str, ...] = ()
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
    def are_patches(self) -> bool:
        """Whether prototypes are training patches; otherwise they are free inducing points."""
        return any(p.origin is not None for p in self.prototypes)

    @property
    def groups(self) -> tuple[tuple[PrototypeSummary, ...], ...]:
        """Groups of similar prototypes in use, each with a colour; the most used first."""
        found: dict[int, list[PrototypeSummary]] = {}
        for prototype in self.used:
            if prototype.group is not None:
                found.setdefault(prototype.group, []).append(prototype)
        return tuple(tuple(found[rank]) for rank in sorted(found))

    @property
    def colours(self) -> dict[int, str]:
        """Colour of each prototype, the same on every slide."""
        return {p.index: p.colour for p in self.prototypes}

    def colours_on(self, slide_id: str) -> dict[int, str]:
        """Give each prototype a colour on one slide, of which no two prototypes share one.

        Those of most of its patches get one, their group's where it is still free; all others are
        `NEUTRAL`.
        """
        own = self.slides.get(slide_id)
        groups = self.colours
        if own is None:
            return groups
        counts = np.bincount(own.assigned, minlength=1 + max(groups, default=0))
        ranked = sorted(groups, key=lambda index: (-counts[index], index))
        found = dict.fromkeys(groups, NEUTRAL)
        free = list(PALETTE)
        for index in [index for index in ranked if counts[index]][: len(PALETTE)]:
            found[index] = groups[index] if groups[index] in free else free[0]
            free.remove(found[index])
        return found

    @property
    def positive_name(self) -> str:
        """Name of the patches with a positive label: that of the second of two classes."""
        return f"“{self.class_names[1]}”" if len(self.class_names) == 2 else "a positive class"

    def share(self, prototype: PrototypeSummary) -> float:
        """Give the share of all patches that are most like a prototype."""
        return prototype.num_patches / max(1, self.num_patches)

    def typical(self, most: int) -> tuple[PrototypeSummary, ...]:
        """Choose prototypes to show: of each group the most used, then by part in the attention.

        Args:
            most: Most prototypes.

        Returns:
            Those of one group next to each other.
        """
        first = [group[0] for group in self.groups]
        rest = [p for group in self.groups for p in group[1:]]
        rest.sort(key=lambda p: (-abs(np.nan_to_num(p.attention_part)), -p.num_patches))
        chosen = {p.index for p in [*first, *rest][:most]}
        return tuple(p for group in self.groups for p in group if p.index in chosen)


def write_prototype_table(
    path: str | os.PathLike[str], explanation: PrototypeExplanation, *, fewest_labelled: int = 1
) -> None:
    """Write a line a prototype as CSV, the most used first and the unused last.

    What is not known is left empty. The origin of an inducing patch is its slide, its row in the
    bag and its top-left corner in level-0 pixels. The examples are ``slide:instance``, the most
    similar first.

    Args:
        path: File to write; replaced where it exists.
        explanation: The prototypes.
        fewest_labelled: Fewest labelled patches for which a share of positive ones is written.

    Raises:
        OSError: The file cannot be written; then nothing is left behind.
    """
    rows = [
        _row(rank, prototype, explanation, fewest_labelled)
        for rank, prototype in enumerate(explanation.prototypes, start=1)
    ]
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(sheet_text(list(rows[0]), [row.values() for row in rows]))


def _row(
    rank: int, prototype: PrototypeSummary, explanation: PrototypeExplanation, fewest: int
) -> dict[str, str]:
    origin = prototype.origin
    corner = None if origin is None else origin.corner
    numbers: dict[str, float] = {
        "share": explanation.share(prototype),
        "positive_share": prototype.positive_share(fewest),
        "mean_attention": prototype.mean_attention,
        "relative_attention": prototype.relative_attention,
        "attention_part": prototype.attention_part,
        "own_contribution": prototype.own_contribution,
        "overall_contribution": prototype.overall_contribution,
        "logit_mean": prototype.logit_mean,
        "logit_at_prototype": prototype.logit_at,
        "logit_at_prototype_sd": prototype.logit_at_sd,
    }
    if prototype.single:
        single = zip(explanation.class_names, prototype.single, prototype.single_sd, strict=True)
        for name, mean, sd in single:
            numbers |= {f"single_{name}": mean, f"single_sd_{name}": sd}
    nuclei = zip(explanation.nucleus_types, prototype.nuclei, strict=True)
    return {
        "rank": str(rank),
        "prototype": str(prototype.index),
        "colour": prototype.colour,
        "origin_slide": "" if origin is None else origin.slide_id,
        "origin_row": "" if origin is None else str(origin.instance),
        "origin_x": "" if corner is None else str(corner[0]),
        "origin_y": "" if corner is None else str(corner[1]),
        "patches": str(prototype.num_patches),
        "slides": str(prototype.num_slides),
        "labelled_patches": str(prototype.num_labelled),
        "positive_patches": str(prototype.num_positive),
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
        "attention_gap": explanation.attention_gap,
        "class_names": explanation.class_names,
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
        content = load_npz(Path(path))
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
            attention_gap=found["attention_gap"],
            class_names=tuple(found["class_names"]),
            nucleus_types=tuple(found["nucleus_types"]),
            missing=tuple(found["missing"]),
        )
    except Exception as error:  # a damaged file fails in many ways
        raise ExplanationError(
            f"Expected the prototypes of a fold in {path}, but they cannot be read "
            f"({reason_of(error)}). Write them again with `overwrite=True`."
        ) from error


def _summary(row: dict[str, Any]) -> PrototypeSummary:
    return PrototypeSummary(
        **{
            **row,
            **{name: tuple(row[name]) for name in ("nuclei", "single", "single_sd")},
            "examples": tuple(_reference(patch) for patch in row["examples"]),
            "origin": None if row["origin"] is None else _reference(row["origin"]),
        }
    )


def _reference(patch: dict[str, Any]) -> PatchReference:
    corner = patch["corner"]
    return PatchReference(**{**patch, "corner": None if corner is None else tuple(corner)})
