"""A model and bags become prototypes: which patches each stands for, and what it does."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from sgpmil.bags.bag import Bag
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.explanation.prototypes.colours import NEUTRAL, prototype_colours
from sgpmil.explanation.prototypes.effect import attention_parts, prototype_weights
from sgpmil.explanation.prototypes.examples import ExamplePatches, PatchReference
from sgpmil.explanation.prototypes.nuclei import Nuclei, nuclei_in_patches
from sgpmil.explanation.prototypes.similarity import (
    SimilarityMeasure,
    SlidePrototypes,
    check_measure,
    gp_in_double,
    input_chunks,
    mean_inputs,
    model_with_prototypes,
    most_similar,
)
from sgpmil.explanation.prototypes.use import PrototypeUse
from sgpmil.models.contract import MILModel
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.shapes import Float, Int

__all__ = ["PrototypeExplanation", "PrototypeSummary", "explain_prototypes"]


@dataclass(frozen=True, slots=True)
class PrototypeSummary:
    r"""What one prototype stands for and does. Means over no patch at all are NaN.

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
        measure: How patches were compared with inducing points.
        slides: Prototypes of each slide's patches.
        prototypes: All prototypes, the most used first and the unused last.
        mean_logit: Mean of $\mathrm E f(x_i)$ over all patches.
        nucleus_types: Names of the types of nuclei.
    """

    measure: SimilarityMeasure
    slides: Mapping[str, SlidePrototypes]
    prototypes: tuple[PrototypeSummary, ...]
    mean_logit: float
    nucleus_types: tuple[str, ...] = ()

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
        """Give the colour of a prototype.

        Args:
            index: Number of the inducing point.
        """
        return self.colours.get(index, NEUTRAL)

    def summary(self, index: int) -> PrototypeSummary:
        """Give the summary of a prototype.

        Args:
            index: Number of the inducing point.

        Raises:
            ExplanationError: There is no such inducing point.
        """
        for prototype in self.prototypes:
            if prototype.index == index:
                return prototype
        raise ExplanationError(
            f"Expected a prototype from 0 to {len(self.prototypes) - 1}, but got {index}. "
            "Choose one that the model has."
        )


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
        measure: How patches are compared with inducing points.
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
    middle = None if centre is None else torch.from_numpy(centre).to(gp.inducing_points)
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
            covariance = gp.kernel(gp.inducing_points, inputs).to_dense()
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
    at = gp.posterior(gp.inducing_points)
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
