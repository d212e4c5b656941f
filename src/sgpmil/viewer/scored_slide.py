"""Scores of one slide's patches as the viewer shows them: layers, places, counts, values."""

import threading
from dataclasses import dataclass
from functools import cached_property
from math import ceil, isfinite, sqrt

import numpy as np

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.map_layers import LayerKind, MapLayer, finite_scores, map_layers
from sgpmil.explanation.maps import patch_side
from sgpmil.shapes import Bool, Float, Int

INTERVAL = 1.96
"""Half the width of a 95 % interval, in standard deviations."""

_UNPLACED_SIDE = 256
_SUBSAMPLES = 2_000
"""Cells along the longer side of the raster that measures overlapping patches."""


@dataclass(frozen=True, slots=True)
class PatchValue:
    """One score of a patch.

    Args:
        kind: Kind of score.
        title: Name in words.
        unit: Unit of its numbers.
        value: The score, or its posterior mean; None where it is not known.
        low: Lower end of its 95 % interval; None for a deterministic model.
        high: Upper end.
    """

    kind: LayerKind
    title: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The patches of which a score reaches a threshold.

    Args:
        num_patches: Their number.
        num_known: Number of patches with a score.
        pixels: Area that they cover together, in level-0 pixels.
        is_exact: Whether the area is exact; otherwise it is counted on a raster.
    """

    num_patches: int
    num_known: int
    pixels: float
    is_exact: bool


class ScoredSlide:
    """Scores of a slide's patches, with an index of where the patches lie.

    Patches without coordinates are laid out in rows, in the order of the bag.

    Args:
        scores: The scores.
        class_names: Names of the classes.

    Attributes:
        scores: The scores; infinite values are NaN.
        is_placed: Whether the patches have coordinates.
        coords: Top-left corner of each patch in level-0 pixels.
        side: Side of a patch in level-0 pixels.
    """

    def __init__(self, scores: InstanceScores, class_names: tuple[str, ...]) -> None:
        self.scores = finite_scores(scores)
        self.class_names = class_names
        self.is_placed = scores.coords is not None and scores.num_instances > 0
        self.coords: Int[np.ndarray, "N 2"] = self._laid_out()
        self.side = _UNPLACED_SIDE
        if scores.coords is not None and scores.num_instances > 0:
            self.coords = scores.coords.astype(np.int64)
            self.side = _side(scores)
        self._layers: dict[int, dict[str, MapLayer]] = {}
        self._lock = threading.Lock()
        order = np.argsort(self.coords[:, 1], kind="stable")
        self._order, self._tops = order, self.coords[order, 1]

    @property
    def num_patches(self) -> int:
        """Number of patches N."""
        return self.scores.num_instances

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, with all its layers."""
        arrays = [getattr(self.scores, name) for name in self.scores.__slots__]
        known = sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))
        return known * 2 + self.num_patches * 8 * (6 + 4 * len(self.class_names))

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the part of the plane that holds all patches, from (0, 0)."""
        if not self.num_patches:
            return 1, 1
        right, bottom = (int(v) for v in self.coords.max(axis=0) + self.side)
        return max(1, right), max(1, bottom)

    @property
    def bounds(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the patches in level-0 pixels."""
        if not self.num_patches:
            return 0, 0, 1, 1
        left, top = (int(v) for v in self.coords.min(axis=0))
        right, bottom = (int(v) for v in self.coords.max(axis=0) + self.side)
        return left, top, right, bottom

    def layers(self, class_index: int) -> dict[str, MapLayer]:
        """Give the layers of the maps by kind; those of a class are for the one asked."""
        with self._lock:
            found = self._layers.get(class_index)
            if found is None:
                name = self.class_names[class_index]
                layers = map_layers(self.scores, class_index, name) if self.num_patches else ()
                found = {layer.kind: layer for layer in layers}
                self._layers[class_index] = found
            return found

    def layer(self, kind: str, class_index: int) -> MapLayer:
        """Give one layer.

        Raises:
            ExplanationError: The model does not give it.
        """
        layers = self.layers(class_index)
        if kind not in layers:
            raise ExplanationError(
                f"Expected a layer among {', '.join(layers)}, but got '{kind}'. Choose one of "
                "these."
            )
        return layers[kind]

    def within(self, left: int, top: int, right: int, bottom: int) -> Int[np.ndarray, " K"]:
        """Find the patches that touch a part of the slide, in level-0 pixels."""
        first = np.searchsorted(self._tops, top - self.side, side="right")
        last = np.searchsorted(self._tops, bottom, side="left")
        rows = self._order[first:last]
        x = self.coords[rows, 0]
        return rows[(x < right) & (x > left - self.side)]

    def patch_at(self, x: float, y: float) -> int | None:
        """Find the patch at a point; of several, the one whose centre is nearest."""
        found = self.within(int(np.floor(x)), int(np.floor(y)), int(x) + 1, int(y) + 1)
        if not len(found):
            return None
        away = self.coords[found] + self.side / 2 - np.array([x, y])
        return int(found[np.argmin((away**2).sum(axis=1))])

    def values(self, patch: int, class_index: int) -> tuple[PatchValue, ...]:
        """Give the scores of a patch with 95 % intervals, in the units of the maps."""
        layers = self.layers(class_index)
        found = []
        for kind, layer in layers.items():
            if kind.endswith("_std"):
                continue
            mean = float(layer.values[patch])
            spread = layers.get(f"{kind}_std")
            value = PatchValue(layer.kind, layer.title, layer.unit, _known(mean))
            if spread is not None and isfinite(mean):
                half = INTERVAL * float(spread.values[patch])
                # Attention is not negative.
                low = max(0.0, mean - half) if kind == "attention" else mean - half
                value = PatchValue(
                    layer.kind, layer.title, layer.unit, mean, _known(low), _known(mean + half)
                )
            found.append(value)
        return tuple(found)

    def select(self, values: Float[np.ndarray, " N"], least: float) -> Selection:
        """Count the patches whose score is at least a threshold, and the area that they cover.

        The area of patches that overlap is that of their union.
        """
        chosen = self.reaches(values, least)
        num = int(chosen.sum())
        known = int(np.isfinite(values).sum())
        if not self.overlap:
            return Selection(num, known, float(num) * self.side**2, True)
        return Selection(num, known, self._union(chosen), False)

    @staticmethod
    def reaches(values: Float[np.ndarray, " N"], least: float) -> Bool[np.ndarray, " N"]:
        """Compare scores with a threshold, which single precision may not hold; NaN is below."""
        return values.astype(np.float64) >= least

    @cached_property
    def overlap(self) -> bool:
        """Whether any two patches overlap."""
        cells = np.unique(self.coords // self.side, axis=0, return_inverse=True)
        # Two that overlap lie in the same cell or in neighbouring ones.
        if len(cells[0]) < self.num_patches:
            return True
        from scipy.spatial import cKDTree

        tree = cKDTree(self.coords)
        return bool(len(tree.query_pairs(self.side - 1, p=np.inf, output_type="ndarray")))

    def _union(self, chosen: Bool[np.ndarray, " N"]) -> float:
        left, top, right, bottom = self.bounds
        cell = max(1.0, max(right - left, bottom - top) / _SUBSAMPLES)
        width, height = ceil((right - left) / cell), ceil((bottom - top) / cell)
        corners = (self.coords[chosen] - np.array([left, top])) / cell
        # A cell is covered where its centre is: corners of a two-dimensional running sum.
        first = np.ceil(corners - 0.5).astype(np.int64)
        last = np.ceil(corners + self.side / cell - 0.5).astype(np.int64)
        steps = np.zeros((height + 1, width + 1), dtype=np.int32)
        for x, y, sign in (
            (first, first, 1),
            (last, first, -1),
            (first, last, -1),
            (last, last, 1),
        ):
            columns, rows = np.clip(x[:, 0], 0, width), np.clip(y[:, 1], 0, height)
            np.add.at(steps, (rows, columns), sign)
        covered = steps.cumsum(axis=0).cumsum(axis=1)[:height, :width] > 0
        return float(covered.sum()) * cell**2

    def _laid_out(self) -> Int[np.ndarray, "N 2"]:
        num = self.scores.num_instances
        across = max(1, ceil(sqrt(num)))
        places = np.arange(num)
        return np.stack([places % across, places // across], axis=1) * _UNPLACED_SIDE


def _side(scores: InstanceScores) -> int:
    try:
        return patch_side(scores)
    except ExplanationError:  # a single patch of unknown size
        return _UNPLACED_SIDE


def _known(value: float) -> float | None:
    return value if isfinite(value) else None
