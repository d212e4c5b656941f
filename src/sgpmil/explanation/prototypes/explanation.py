"""Prototypes of a set of slides, found from a model with inducing points and the slides' bags."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from sgpmil.bags.bag import Bag
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.prototypes.nuclei import Nuclei, nuclei_in_patches
from sgpmil.explanation.prototypes.similarity import (
    SimilarityMeasure,
    SlidePrototypes,
    attention_parts,
    check_measure,
    gp_in_double,
    input_chunks,
    mean_inputs,
    model_with_prototypes,
    most_similar,
    prototype_weights,
)
from sgpmil.explanation.prototypes.summary import (
    PatchReference,
    PrototypeExplanation,
    PrototypeSummary,
)
from sgpmil.models.contract import MILModel
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.shapes import Float, Int


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
        """Add what the Gaussian process says of some patches."""
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
        """Add the nuclei of a slide."""
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


class ExamplePatches:
    """The best examples of each prototype, kept while slides pass by.

    Those of one slide resemble each other, so at most a few are taken of each; the remaining
    places, where there are too few slides to fill them, go to the next best of any slide.

    Args:
        num_prototypes: Number of prototypes M.
        most: Most examples of a prototype.
        most_a_slide: Most examples of one slide, as long as other slides have some.
    """

    def __init__(self, num_prototypes: int, most: int, most_a_slide: int) -> None:
        self.most = most
        self.most_a_slide = most_a_slide
        self._kept: list[list[PatchReference]] = [[] for _ in range(num_prototypes)]

    def add(self, bag: Bag, slide: SlidePrototypes) -> None:
        """Look at the patches of a slide."""
        order = np.lexsort((-slide.similarity, slide.assigned))
        numbers, starts = np.unique(slide.assigned[order], return_index=True)
        for number, start, end in zip(numbers, starts, [*starts[1:], len(order)], strict=True):
            best = order[start : min(end, start + self.most)]
            found = [_reference(bag, int(i), float(slide.similarity[i])) for i in best]
            kept = _best_first(self._kept[number] + found)
            # Whatever slides come later, no other patch can be chosen.
            chosen = {*kept[: self.most], *self._spread(kept)}
            self._kept[number] = [patch for patch in kept if patch in chosen]

    def best(self, number: int) -> tuple[PatchReference, ...]:
        """Give the examples of a prototype, the most similar first."""
        kept = self._kept[number]
        spread = self._spread(kept)
        rest = [patch for patch in kept if patch not in set(spread)]
        return tuple(_best_first([*spread, *rest[: self.most - len(spread)]]))

    def _spread(self, kept: Sequence[PatchReference]) -> list[PatchReference]:
        counts: dict[str, int] = {}
        chosen: list[PatchReference] = []
        for patch in kept:
            counts[patch.slide_id] = counts.get(patch.slide_id, 0) + 1
            if counts[patch.slide_id] <= self.most_a_slide and len(chosen) < self.most:
                chosen.append(patch)
        return chosen


def _reference(bag: Bag, instance: int, similarity: float) -> PatchReference:
    corner = None
    if bag.coords is not None:
        x, y = bag.coords[instance].tolist()
        corner = (x, y)
    return PatchReference(bag.slide_id, instance, similarity, corner, bag.patch_size)


def _best_first(patches: Sequence[PatchReference]) -> list[PatchReference]:
    return sorted(patches, key=lambda p: (-p.similarity, p.slide_id, p.instance))


@torch.no_grad()
def explain_prototypes(
    model: MILModel,
    bags: Iterable[Bag],
    *,
    scores: Mapping[str, InstanceScores] | None = None,
    measure: SimilarityMeasure = "cosine",
    centre: Float[np.ndarray, " G"] | None = None,
    top: int = 7,
    most_a_slide: int = 2,
    nuclei: Callable[[str], Nuclei | None] | None = None,
    on_slide: Callable[[str], None] | None = None,
) -> PrototypeExplanation:
    """Find the prototype of every patch, and what each prototype stands for and does.

    Bags are read one at a time and embedded in pieces, so that memory is that of the largest.

    Args:
        model: A model with inducing points (sgpmil, agp); it is left in evaluation mode.
        bags: Slides to explain together.
        scores: Attention and labels of the patches, where known, by slide.
        measure: Measure of similarity of patches to inducing points.
        centre: Mean of the inputs for the centred cosine (see `mean_inputs`); by default over
            the given bags, which are then read twice.
        top: Number of example patches a prototype.
        most_a_slide: Most examples of one slide, as long as other slides have some.
        nuclei: Gives the nuclei of a slide, where there are any (see `read_nuclei`). A nucleus in
            several patches that overlap counts in each.
        on_slide: Called with the name of each slide that is done.

    Raises:
        ExplanationError: The model has no inducing points; there are no bags, or one comes twice;
            a bag, its scores and its nuclei do not fit together; or an option is impossible.
    """
    wanted = model_with_prototypes(model).eval()
    check_measure(measure)
    if top < 1 or most_a_slide < 1:
        raise ExplanationError(
            f"Expected at least one example a prototype and slide, but got {top} and "
            f"{most_a_slide}. Ask for 7 and 2."
        )
    if measure == "centred" and centre is None:
        if isinstance(bags, Iterator):
            raise ExplanationError(
                "Expected bags that can be read twice for the centred cosine, but got an "
                "iterator. Pass a data set or a list, or the centre (mean_inputs)."
            )
        centre = mean_inputs(wanted, bags)
    gp = gp_in_double(wanted)
    middle = None if centre is None else torch.from_numpy(centre).to(gp.points)
    weights = prototype_weights(gp)
    use = PrototypeUse(len(weights))
    examples = ExamplePatches(len(weights), top, most_a_slide)
    slides: dict[str, SlidePrototypes] = {}
    for bag in bags:
        if bag.slide_id in slides:
            raise ExplanationError(
                f"Expected every slide once, but got '{bag.slide_id}' twice. Name it once."
            )
        own = _own_scores(bag, scores)
        assigned, similarity = [], []
        for inputs in input_chunks(wanted, bag):
            covariance = gp.kernel(gp.points, inputs).to_dense()
            numbers, values = most_similar(gp, inputs, covariance, measure, middle)
            parts = attention_parts(gp, inputs, covariance, weights)
            assigned.append(numbers.to("cpu", torch.int32).numpy())
            similarity.append(values.cpu().float().numpy())
            use.add_logits(
                assigned[-1], parts.total.cpu().numpy(), parts.contributions.cpu().numpy()
            )
        slide = SlidePrototypes(bag.slide_id, np.concatenate(assigned), np.concatenate(similarity))
        slides[bag.slide_id] = slide
        use.add_slide(slide, own, _labels(bag, own))
        examples.add(bag, slide)
        found = None if nuclei is None else nuclei(bag.slide_id)
        if found is not None:
            use.add_nuclei(slide, found.type_names, _count_nuclei(found, bag))
        if on_slide is not None:
            on_slide(bag.slide_id)
    if not slides:
        raise ExplanationError("Expected at least one slide to explain, but got none. Name some.")
    return _summarise(wanted, measure, slides, use, examples)


def _own_scores(bag: Bag, scores: Mapping[str, InstanceScores] | None) -> InstanceScores | None:
    own = None if scores is None else scores.get(bag.slide_id)
    if own is not None and own.num_instances != bag.num_instances:
        raise ExplanationError(
            f"Expected scores of the {bag.num_instances} patches of '{bag.slide_id}', but got "
            f"{own.num_instances}. Predict again with these embeddings."
        )
    return own


def _labels(bag: Bag, own: InstanceScores | None) -> Int[np.ndarray, " N"] | None:
    if own is not None and own.instance_labels is not None:
        return own.instance_labels
    return None if bag.instance_labels is None else bag.instance_labels.numpy()


def _count_nuclei(found: Nuclei, bag: Bag) -> Int[np.ndarray, "N K"]:
    if bag.coords is None or bag.patch_size is None:
        raise ExplanationError(
            f"Expected '{bag.slide_id}' with coordinates and the size of a patch to count nuclei, "
            "but it has none. Extract its embeddings with coordinates."
        )
    return nuclei_in_patches(found, bag.coords.numpy(), bag.patch_size)


def _summarise(
    model: SGPMIL,
    measure: SimilarityMeasure,
    slides: Mapping[str, SlidePrototypes],
    use: PrototypeUse,
    examples: ExamplePatches,
) -> PrototypeExplanation:
    gp = gp_in_double(model)
    at = gp.posterior(gp.points)
    mean, sd = at.mean.cpu().numpy(), at.variance.sqrt().cpu().numpy()
    num_patches = int(use.patches.sum())

    def over(total: np.ndarray, count: np.ndarray, m: int) -> float:
        return float(total[m] / count[m]) if count[m] else math.nan

    prototypes = tuple(
        PrototypeSummary(
            index=m,
            num_patches=int(use.patches[m]),
            num_slides=int(use.slides[m]),
            num_labelled=int(use.labelled[m]),
            num_cancerous=int(use.cancerous[m]),
            mean_attention=over(use.attention, use.scored, m),
            relative_attention=over(use.relative_attention, use.scored, m),
            own_contribution=over(use.own_contribution, use.patches, m),
            overall_contribution=float(use.contribution[m] / num_patches),
            logit_mean=over(use.logit, use.patches, m),
            logit_at=float(mean[m]),
            logit_at_sd=float(sd[m]),
            nuclei=tuple(int(counts[m]) for counts in use.nuclei.values()),
            examples=examples.best(m),
        )
        for m in use.order()
    )
    return PrototypeExplanation(
        measure=measure,
        slides=slides,
        prototypes=prototypes,
        mean_logit=float(use.logit.sum() / num_patches),
        nucleus_types=tuple(use.nuclei),
    )
