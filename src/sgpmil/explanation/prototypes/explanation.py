"""Prototypes of a set of slides, found from a model with inducing points and the slides' bags."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from sgpmil.bags.bag import Bag
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.prototypes.examples import ExamplePatches
from sgpmil.explanation.prototypes.nuclei import Nuclei, nuclei_in_patches
from sgpmil.explanation.prototypes.origins import patch_origins, single_log_odds
from sgpmil.explanation.prototypes.similarity import (
    SimilarityMeasure,
    SlidePrototypes,
    attention_parts,
    check_measure,
    gp_in_double,
    group_points,
    input_chunks,
    mean_inputs,
    model_with_prototypes,
    most_similar,
    prototype_weights,
)
from sgpmil.explanation.prototypes.summary import (
    PALETTE,
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
        positive: Number of those that are positive.
        scored: Number of patches whose attention is known.
        scored_slides: Number of slides of such patches.
        attention: Sum of their attention.
        relative_attention: Sum of their attention relative to the mean of their slide.
        logit: Sum of the posterior mean of their attention logits.
        attention_part: Sum over slides of the prototype's part in the attention.
        attention_gap: Sum over slides of the mean logit under the attention less the plain mean.
        own_contribution: Sum of the prototype's contribution to the logits of its own patches.
        contribution: Sum of its contribution to the logits of all patches.
        nuclei: Number of nuclei of each type in its patches.
    """

    def __init__(self, num_prototypes: int) -> None:
        self.num_prototypes = num_prototypes
        self.patches = np.zeros(num_prototypes, dtype=np.int64)
        self.slides = np.zeros(num_prototypes, dtype=np.int64)
        self.labelled = np.zeros(num_prototypes, dtype=np.int64)
        self.positive = np.zeros(num_prototypes, dtype=np.int64)
        self.scored = np.zeros(num_prototypes, dtype=np.int64)
        self.scored_slides = 0
        self.attention = np.zeros(num_prototypes)
        self.relative_attention = np.zeros(num_prototypes)
        self.logit = np.zeros(num_prototypes)
        self.attention_part = np.zeros(num_prototypes)
        self.attention_gap = 0.0
        self.own_contribution = np.zeros(num_prototypes)
        self.contribution = np.zeros(num_prototypes)
        self.nuclei: dict[str, np.ndarray] = {}

    def add_logits(
        self,
        assigned: Int[np.ndarray, " T"],
        logits: Float[np.ndarray, " T"],
        contributions: Float[np.ndarray, "M T"],
        excess: Float[np.ndarray, " T"] | None,
    ) -> None:
        """Add what the Gaussian process says of some patches.

        Args:
            assigned: Their prototypes.
            logits: Posterior mean of their attention logits.
            contributions: Each prototype's contribution to it.
            excess: Their share of the slide's attention less the mean share, where known.
        """
        if excess is not None:
            self.attention_part += contributions @ excess
            self.attention_gap += float(logits @ excess)
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
            self.positive += np.bincount(positive, minlength=self.num_prototypes)
        if scores is not None:
            attention = scores.attention_mean.astype(np.float64)
            self.scored += counts
            self.scored_slides += 1
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


@torch.no_grad()
def explain_prototypes(
    model: MILModel,
    bags: Iterable[Bag],
    *,
    scores: Mapping[str, InstanceScores] | None = None,
    measure: SimilarityMeasure = "kernel",
    centre: Float[np.ndarray, " G"] | None = None,
    top: int = 7,
    most_a_slide: int = 2,
    nuclei: Callable[[str], Nuclei | None] | None = None,
    patch_size: Callable[[str], int | None] = lambda _: None,
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
        patch_size: Gives the side of a training slide's patches in level-0 pixels, where known.
        on_slide: Called with the name of each slide that is done.

    Raises:
        ExplanationError: The model has no inducing points, or its inducing patches were never
            chosen; there are no bags, or one comes twice; a bag, its scores and its nuclei do not
            fit together; or an option is impossible.
    """
    wanted = model_with_prototypes(model).eval()
    origins = patch_origins(wanted, patch_size)
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
    examples = ExamplePatches(len(weights), top, most_a_slide, origins)
    slides: dict[str, SlidePrototypes] = {}
    for bag in bags:
        if bag.slide_id in slides:
            raise ExplanationError(
                f"Expected every slide once, but got '{bag.slide_id}' twice. Name it once."
            )
        own = _own_scores(bag, scores)
        excess = None if own is None else _excess(own)
        assigned, similarity = [], []
        start = 0
        for inputs in input_chunks(wanted, bag):
            covariance = gp.kernel(gp.points, inputs).to_dense()
            numbers, values = most_similar(gp, inputs, covariance, measure, middle)
            parts = attention_parts(gp, inputs, covariance, weights)
            assigned.append(numbers.to("cpu", torch.int32).numpy())
            similarity.append(values.cpu().float().numpy())
            use.add_logits(
                assigned[-1],
                parts.total.cpu().numpy(),
                parts.contributions.cpu().numpy(),
                None if excess is None else excess[start : start + len(inputs)],
            )
            start += len(inputs)
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
    return _summarise(wanted, measure, slides, use, examples, origins)


def _own_scores(bag: Bag, scores: Mapping[str, InstanceScores] | None) -> InstanceScores | None:
    own = None if scores is None else scores.get(bag.slide_id)
    if own is not None and own.num_instances != bag.num_instances:
        raise ExplanationError(
            f"Expected scores of the {bag.num_instances} patches of '{bag.slide_id}', but got "
            f"{own.num_instances}. Predict again with these embeddings."
        )
    return own


def _excess(scores: InstanceScores) -> Float[np.ndarray, " N"]:
    """Return how far each patch's share of the attention exceeds the mean share of the slide."""
    attention = scores.attention_mean.astype(np.float64)
    total = float(attention.sum())
    return (attention / total if total else np.zeros_like(attention)) - 1 / len(attention)


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
    origins: Sequence[PatchReference],
) -> PrototypeExplanation:
    gp = gp_in_double(model)
    groups = _groups(use, gp.points.cpu().numpy())
    single, single_sd = single_log_odds(model)
    at = gp.posterior(gp.points)
    mean, sd = at.mean.cpu().numpy(), at.variance.sqrt().cpu().numpy()
    num_patches = int(use.patches.sum())

    def over(total: np.ndarray, count: np.ndarray, m: int) -> float:
        return _mean(float(total[m]), int(count[m]))

    prototypes = tuple(
        PrototypeSummary(
            index=m,
            num_patches=int(use.patches[m]),
            num_slides=int(use.slides[m]),
            num_labelled=int(use.labelled[m]),
            num_positive=int(use.positive[m]),
            mean_attention=over(use.attention, use.scored, m),
            relative_attention=over(use.relative_attention, use.scored, m),
            attention_part=_mean(float(use.attention_part[m]), use.scored_slides),
            own_contribution=over(use.own_contribution, use.patches, m),
            overall_contribution=float(use.contribution[m] / num_patches),
            logit_mean=over(use.logit, use.patches, m),
            logit_at=float(mean[m]),
            logit_at_sd=float(sd[m]),
            group=groups.get(m),
            nuclei=tuple(int(counts[m]) for counts in use.nuclei.values()),
            examples=examples.best(m),
            origin=origins[m] if origins else None,
            single=single[m] if single else (),
            single_sd=single_sd[m] if single_sd else (),
        )
        for m in use.order()
    )
    return PrototypeExplanation(
        measure=measure,
        slides=slides,
        prototypes=prototypes,
        mean_logit=float(use.logit.sum() / num_patches),
        attention_gap=_mean(use.attention_gap, use.scored_slides),
        class_names=model.target.names,
        nucleus_types=tuple(use.nuclei),
    )


def _groups(use: PrototypeUse, points: Float[np.ndarray, "M G"]) -> dict[int, int]:
    """Give the rank of the group of each prototype in use, the most used group first."""
    used = [m for m in use.order() if use.patches[m]]
    numbers = group_points(points[used], len(PALETTE))
    patches = np.bincount(numbers, weights=use.patches[used])
    ranks = np.argsort(np.argsort(-patches, kind="stable"))
    return {m: int(ranks[number]) for m, number in zip(used, numbers, strict=True)}


def _mean(total: float, count: int) -> float:
    return float(total / count) if count else math.nan
