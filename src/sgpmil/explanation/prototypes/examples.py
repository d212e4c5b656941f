"""Examples of prototypes: the patches that are most like each, kept while slides pass by."""

from collections.abc import Sequence

import numpy as np

from sgpmil.bags.bag import Bag
from sgpmil.explanation.prototypes.similarity import SlidePrototypes
from sgpmil.explanation.prototypes.summary import PatchReference


class ExamplePatches:
    """The best examples of each prototype, kept while slides pass by.

    Those of one slide resemble each other, so at most a few are taken of each; the remaining
    places, where there are too few slides to fill them, go to the next best of any slide.

    Args:
        num_prototypes: Number of prototypes M.
        most: Most examples of a prototype.
        most_a_slide: Most examples of one slide, as long as other slides have some.
        origins: The training patch that each prototype is; its slide gives no example.
    """

    def __init__(
        self,
        num_prototypes: int,
        most: int,
        most_a_slide: int,
        origins: Sequence[PatchReference] = (),
    ) -> None:
        self.most = most
        self.most_a_slide = most_a_slide
        self.own_slides = [origin.slide_id for origin in origins] or [""] * num_prototypes
        self._kept: list[list[PatchReference]] = [[] for _ in range(num_prototypes)]

    def add(self, bag: Bag, slide: SlidePrototypes) -> None:
        """Look at the patches of a slide."""
        order = np.lexsort((-slide.similarity, slide.assigned))
        numbers, starts = np.unique(slide.assigned[order], return_index=True)
        for number, start, end in zip(numbers, starts, [*starts[1:], len(order)], strict=True):
            if bag.slide_id == self.own_slides[number]:
                continue
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
