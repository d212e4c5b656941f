"""Patches that look alike to the encoder, in one slide and over all slides."""

import threading
from dataclasses import dataclass

import numpy as np

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import ExplanationError, SgpmilError
from sgpmil.notebook import counted
from sgpmil.shapes import Float, Int

_MOST_BYTES = 2**28
"""Most memory of the embeddings that are compared: 256 MiB."""


@dataclass(frozen=True, slots=True)
class SimilarPatch:
    """A patch that resembles another.

    Args:
        slide_id: Its slide.
        patch: Its number in the bag.
        similarity: Cosine of the two embeddings.
    """

    slide_id: str
    patch: int
    similarity: float


@dataclass(frozen=True, slots=True)
class SimilarPatches:
    """The patches that resemble one most.

    Args:
        here: Those of the same slide, the most similar first.
        elsewhere: Those of other slides, at most one a slide.
        note: Sentence about what was searched.
    """

    here: tuple[SimilarPatch, ...]
    elsewhere: tuple[SimilarPatch, ...]
    note: str


class PatchSearch:
    """Search for patches whose embeddings have the largest cosine with that of one patch.

    The embeddings of all slides are read when the first patch is searched for. Where they do not
    fit into memory, each slide gives patches that are evenly spaced in its bag.

    Args:
        bags: The embeddings.
        most_bytes: Most memory.
    """

    def __init__(self, bags: BagDataset, most_bytes: int = _MOST_BYTES) -> None:
        self.bags = bags
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._index: _Index | None = None

    def search(self, slide_id: str, patch: int, most: int = 6) -> SimilarPatches:
        """Find the patches that resemble one most, in its slide and in others.

        Raises:
            ExplanationError: There is no embedding of it.
            SgpmilError: The embeddings of its slide cannot be read.
        """
        if slide_id not in self.bags.slide_ids:
            raise ExplanationError(
                f"Expected embeddings of '{slide_id}' to compare its patches, but there are none. "
                "Name them with --features."
            )
        own = _unit(self.bags[self.bags.index(slide_id)].features.float().numpy())
        if not 0 <= patch < len(own):
            raise ExplanationError(
                f"Expected a patch from 0 to {len(own) - 1} of '{slide_id}', but got {patch}. "
                "Choose another."
            )
        wanted = own[patch]
        cosines = own @ wanted
        cosines[patch] = -np.inf
        best = np.argsort(-cosines, kind="stable")[: min(most, len(own) - 1)]
        here = tuple(SimilarPatch(slide_id, int(i), float(cosines[i])) for i in best)
        with self._lock:
            if self._index is None:
                self._index = _Index(self.bags, self.most_bytes)
            index = self._index
        return SimilarPatches(here, index.nearest(wanted, slide_id, most), index.note)


class _Index:
    """Embeddings of all slides, of unit length, in one matrix."""

    def __init__(self, bags: BagDataset, most_bytes: int) -> None:
        most = most_bytes // (4 * bags.feature_dim)
        fits = sum(bags.num_instances) <= most
        quota = max(bags.num_instances) if fits else max(1, most // len(bags))
        features, slides, patches, unreadable, left_out = [], [], [], 0, False
        for number in range(len(bags)):
            try:
                found = bags[number].features.float().numpy()
            except SgpmilError:
                unreadable += 1
                continue
            rows = np.arange(len(found))
            if len(found) > quota:
                rows = np.linspace(0, len(found) - 1, quota).round().astype(np.int64)
                left_out = True
            features.append(_unit(found[rows]))
            slides.append(np.full(len(rows), number))
            patches.append(rows)
        self.slide_ids = bags.slide_ids
        self.features: Float[np.ndarray, "T D"] = (
            np.concatenate(features) if features else np.zeros((0, bags.feature_dim), np.float32)
        )
        self.slides: Int[np.ndarray, " T"] = np.concatenate(slides or [np.zeros(0, np.int64)])
        self.patches: Int[np.ndarray, " T"] = np.concatenate(patches or [np.zeros(0, np.int64)])
        count = (
            f"{counted(len(self.features), 'patch', 'patches')} of "
            f"{counted(len(bags) - unreadable, 'slide')}"
        )
        self.note = f"Searched {count}, by the cosine of their embeddings."
        if left_out:
            self.note += " Large slides gave evenly spaced patches only."
        if unreadable:
            self.note += f" Embeddings of {unreadable} slides could not be read."

    def nearest(
        self, wanted: Float[np.ndarray, " D"], slide_id: str, most: int
    ) -> tuple[SimilarPatch, ...]:
        if len(wanted) != self.features.shape[1]:
            return ()
        cosines = self.features @ wanted
        own = self.slide_ids.index(slide_id)
        cosines[self.slides == own] = -np.inf
        # The best of each slide, then the best slides.
        order = np.lexsort((-cosines, self.slides))
        numbers, first = np.unique(self.slides[order], return_index=True)
        best = order[first][numbers != own]
        best = best[np.argsort(-cosines[best], kind="stable")][:most]
        return tuple(
            SimilarPatch(
                self.slide_ids[int(self.slides[i])], int(self.patches[i]), float(cosines[i])
            )
            for i in best
        )


def _unit(features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(length, np.finfo(np.float32).tiny)
