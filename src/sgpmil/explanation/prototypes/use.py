"""Patches, slides and labels counted a prototype, while slides pass by."""

from collections.abc import Sequence

import numpy as np

from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.explanation.prototypes.similarity import SlidePrototypes
from sgpmil.shapes import Float, Int

__all__ = ["PrototypeUse"]


class PrototypeUse:
    """Sums over the patches of each prototype.

    Args:
        num_prototypes: Number of prototypes M.

    Attributes:
        patches: Number of patches.
        slides: Number of slides with such a patch.
        labelled: Number of patches whose label is known.
        cancerous: Number of those that are positive.
        scored: Number of patches whose attention is known.
        attention: Sum of their attention.
        relative_attention: Sum of their attention relative to the mean of their slide.
        logit: Sum of the posterior mean of their attention logits.
        own_contribution: Sum of the prototype's contribution to the logits of its own patches.
        contribution: Sum of its contribution to the logits of all patches.
        nuclei: Number of nuclei of each type in its patches.
    """

    def __init__(self, num_prototypes: int) -> None:
        self.num_prototypes = num_prototypes
        self.patches = np.zeros(num_prototypes, dtype=np.int64)
        self.slides = np.zeros(num_prototypes, dtype=np.int64)
        self.labelled = np.zeros(num_prototypes, dtype=np.int64)
        self.cancerous = np.zeros(num_prototypes, dtype=np.int64)
        self.scored = np.zeros(num_prototypes, dtype=np.int64)
        self.attention = np.zeros(num_prototypes)
        self.relative_attention = np.zeros(num_prototypes)
        self.logit = np.zeros(num_prototypes)
        self.own_contribution = np.zeros(num_prototypes)
        self.contribution = np.zeros(num_prototypes)
        self.nuclei: dict[str, np.ndarray] = {}

    def add_logits(
        self,
        assigned: Int[np.ndarray, " T"],
        logits: Float[np.ndarray, " T"],
        contributions: Float[np.ndarray, "M T"],
    ) -> None:
        """Add what the Gaussian process says of some patches.

        Args:
            assigned: Prototype of each patch.
            logits: Posterior mean of the attention logits.
            contributions: What each prototype adds to them.
        """
        own = contributions[assigned, np.arange(len(assigned))]
        self.logit += self._sum(assigned, logits)
        self.own_contribution += self._sum(assigned, own)
        self.contribution += contributions.sum(axis=1)

    def add_slide(
        self,
        slide: SlidePrototypes,
        scores: InstanceScores | None,
        labels: Int[np.ndarray, " N"] | None,
    ) -> None:
        """Add the patches of a slide.

        Args:
            slide: Their prototypes.
            scores: Their attention, where known.
            labels: Their labels, where known; negative where unknown.
        """
        counts = np.bincount(slide.assigned, minlength=self.num_prototypes)
        self.patches += counts
        self.slides += counts > 0
        if labels is not None:
            known = labels >= 0
            self.labelled += np.bincount(slide.assigned[known], minlength=self.num_prototypes)
            positive = slide.assigned[labels > 0]
            self.cancerous += np.bincount(positive, minlength=self.num_prototypes)
        if scores is not None:
            attention = scores.attention_mean.astype(np.float64)
            self.scored += counts
            self.attention += self._sum(slide.assigned, attention)
            mean = float(attention.mean())
            relative = attention / mean if mean else np.ones_like(attention)
            self.relative_attention += self._sum(slide.assigned, relative)

    def add_nuclei(
        self,
        slide: SlidePrototypes,
        type_names: Sequence[str],
        counts: Int[np.ndarray, "N K"],
    ) -> None:
        """Add the nuclei of a slide.

        Args:
            slide: Prototypes of its patches.
            type_names: Names of the types of nuclei.
            counts: Number of nuclei of each type in each patch.
        """
        for name, values in zip(type_names, counts.T, strict=True):
            found = self._sum(slide.assigned, values.astype(np.float64)).round().astype(np.int64)
            self.nuclei[name] = self.nuclei.get(name, 0) + found

    def order(self) -> list[int]:
        """Give the numbers of all prototypes, the most used first; of equal ones, the first."""
        return [int(m) for m in np.argsort(-self.patches, kind="stable")]

    def _sum(
        self, assigned: Int[np.ndarray, " T"], values: Float[np.ndarray, " T"]
    ) -> Float[np.ndarray, " M"]:
        return np.bincount(assigned, weights=values, minlength=self.num_prototypes)
