"""Prototypes as a table."""

import csv
import math
import os

from sgpmil.bags.files import atomic_path
from sgpmil.explanation.prototypes.explanation import PrototypeExplanation, PrototypeSummary

__all__ = ["write_prototype_table"]


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
