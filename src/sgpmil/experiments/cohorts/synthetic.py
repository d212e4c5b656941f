r"""Synthetic slides of a cohort: patches, lesions and features that are drawn when they are read.

Each slide has

- $\exp N(\log m, 0.6^2)$ patches, with the cohort's median m, on a grid of level-0 coordinates;
- tissue: patches take one of 24 phenotypes from the nearest of 14 points of the slide, and are the
  phenotype's centre, plus a shift of the slide, plus normal noise;
- lesions: outlines drawn around patches of the tissue; the patches inside are shifted towards one
  of the types of its kind, fully or in part. A third of the phenotypes lean that way everywhere;
- instance labels: whether the centre of a patch is inside an outline that counts for its slide.

====================  ==============================================================================
CAMELYON16            tumour slides have 1 to 3 lesions, together a median of 4 % of the patches; in
                      one slide of 20 they are single patches
TCGA-NSCLC            30 to 80 % of the patches are tumour, of the type of the class
PANDA                 cancer of patterns 3, 4 and 5 in the proportions of the grade
BRACS                 regions of the class of the slide, and of lesser classes
====================  ==============================================================================
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sgpmil.bags.bag import Bag
from sgpmil.bags.labels import LabelTable
from sgpmil.bags.readers.raw import BagHeader
from sgpmil.experiments.cohorts.cohort import Cohort
from sgpmil.processes import compute_device
from sgpmil.shapes import Bool, Float, Int

_PHENOTYPES, _POINTS, _TYPES = 24, 14, 3
BASE_MAGNIFICATION = 40
"""Magnification of level 0."""
_SPREAD = 0.6
_CORNERS = 72

SYNTHETIC = "synthetic"
"""Name of the encoder of rehearsals."""
_NOISE = 0.6
"""Standard deviation of a feature around the centre of its phenotype."""
_SLIDE_SHIFT = 0.1
"""Standard deviation of a feature of the shift of a slide, as stain and scanner make it."""
_LESION = 9.0
"""Length of the shift of a patch that is all lesion: fifteen standard deviations of the noise."""
_LEAN = 0.25
"""Share of that shift in phenotypes that look like a lesion."""

_PATTERNS: Mapping[str, tuple[float, float, float]] = {
    "G1": (1.0, 0.0, 0.0),
    "G2": (0.7, 0.3, 0.0),
    "G3": (0.3, 0.7, 0.0),
    "G4": (0.0, 1.0, 0.0),
    "G5": (0.0, 0.4, 0.6),
}
"""Shares of Gleason's patterns 3, 4 and 5 in the cancer of an ISUP grade."""
_SUBTYPES = {"AT": "ADH", "BT": "PB", "MT": "IC"}
"""A subtype of BRACS for each class."""


@dataclass(frozen=True, slots=True, eq=False)
class Lesion:
    """An outline that was drawn around a patch of the tissue.

    Args:
        kind: Its kind: the index of a class, or of a Gleason pattern.
        centre: Its middle in patches (x, y).
        radius: Its mean radius in patches.
        phases: Two angles that its outline depends on.
        name: Name of its region in annotations.
        counts: Whether its patches are positive.
    """

    kind: int
    centre: tuple[float, float]
    radius: float
    phases: tuple[float, float]
    name: str
    counts: bool

    def reach(self, angle: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
        """Return the distance of the outline from the middle, by the angle."""
        first, second = self.phases
        wave = 1 + 0.25 * np.sin(2 * angle + first) + 0.15 * np.sin(3 * angle + second)
        return np.asarray(self.radius * wave)

    def contains(self, middles: Float[np.ndarray, "N 2"]) -> Bool[np.ndarray, " N"]:
        """Return whether points are inside the outline."""
        away = middles - np.array(self.centre)
        angle = np.arctan2(away[:, 1], away[:, 0])
        return np.asarray(np.hypot(away[:, 0], away[:, 1]) <= self.reach(angle))

    def outline(self, side: int) -> Float[np.ndarray, "K 2"]:
        """Return the outline in level-0 pixels, for patches of a side."""
        angle = np.linspace(0, 2 * np.pi, _CORNERS, endpoint=False)
        ring = self.reach(angle)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        return np.asarray((np.array(self.centre) + ring) * side)


@dataclass(frozen=True, slots=True, eq=False)
class DrawnSlide:
    """A slide without its features.

    Args:
        slide_id: Its name.
        label: Its class.
        cells: Place of each patch in the grid (column, row).
        side: Side of a patch in level-0 pixels.
        lesions: The lesions.
    """

    slide_id: str
    label: str
    cells: Int[np.ndarray, "N 2"]
    side: int
    lesions: tuple[Lesion, ...]

    @property
    def kinds(self) -> Int[np.ndarray, " N"]:
        """Kind of the lesion that each patch is in; -1 in none."""
        found = np.full(len(self.cells), -1)
        for lesion in self.lesions:
            found[lesion.contains(self.cells + 0.5)] = lesion.kind
        return found

    @property
    def instance_labels(self) -> Int[np.ndarray, " N"]:
        """Whether each patch is in a lesion that counts."""
        found = np.zeros(len(self.cells), dtype=np.int64)
        for lesion in self.lesions:
            if lesion.counts:
                found[lesion.contains(self.cells + 0.5)] = 1
        return found


@dataclass(frozen=True, slots=True)
class Drawing:
    """How slides are drawn.

    Args:
        scale: Factor of the number of patches of each slide.
        dim: Number of features.
        seed: Seed.
        device: Device that draws the features.
    """

    scale: float = 1.0
    dim: int = 1024
    seed: int = 0
    device: str = "auto"


class SyntheticSource:
    """Bags that are drawn when they are read, the same ones every time.

    Args:
        cohort: The cohort.
        table: Slides and labels.
        options: How they are drawn.
    """

    def __init__(self, cohort: Cohort, table: LabelTable, options: Drawing) -> None:
        self.cohort = cohort
        self.options = options
        self._labels = dict(zip(table.slide_ids, table.labels, strict=True))
        self._device = compute_device(options.device, needs_float64=False)

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        return tuple(self._labels)

    def stamp(self, slide_id: str) -> str:
        """Return a text that changes when the bag's content does."""
        o = self.options
        return f"rehearsal {self.cohort.name} {slide_id} {o.seed} {o.scale} {o.dim}"

    def header(self, slide_id: str) -> BagHeader:
        """Return the size of a bag."""
        return BagHeader(
            self._num_patches(slide_id),
            self.options.dim,
            dtype="float16",
            encoder=SYNTHETIC,
            magnification=float(self.cohort.magnification),
            patch_size=self.side,
            has_coords=True,
            has_instance_labels=True,
        )

    @property
    def side(self) -> int:
        """Side of a patch in level-0 pixels."""
        return self.cohort.patch_size * BASE_MAGNIFICATION // self.cohort.magnification

    def read(self, slide_id: str) -> Bag:
        """Draw a bag."""
        drawn = self.slide(slide_id)
        return Bag(
            features=self._features(drawn).cpu(),
            slide_id=slide_id,
            coords=torch.from_numpy(drawn.cells * self.side),
            patch_size=self.side,
            instance_labels=torch.from_numpy(drawn.instance_labels),
            is_finite=True,
        )

    def slide(self, slide_id: str) -> DrawnSlide:
        """Draw the patches and lesions of a slide."""
        rng = self._numbers(slide_id, 1)
        count = self._num_patches(slide_id)
        side = math.ceil(math.sqrt(count / 0.6))
        rows, columns = np.divmod(np.arange(side * side), side)
        # The tissue is a disc with a ragged edge.
        away = np.hypot(columns - side / 2, rows - side / 2)
        angle = np.arctan2(rows - side / 2, columns - side / 2)
        ragged = away * (1 + 0.2 * np.sin(3 * angle + rng.uniform(0, 6)) + rng.normal(0, 0.02))
        chosen = np.sort(np.argsort(ragged, kind="stable")[:count])
        cells = np.stack([columns[chosen], rows[chosen]], axis=1).astype(np.int64)
        label = self._labels[slide_id]
        lesions = tuple(self._lesions(label, cells, rng))
        return DrawnSlide(slide_id, label, cells, self.side, lesions)

    def _num_patches(self, slide_id: str) -> int:
        rng = self._numbers(slide_id, 0)
        size = math.exp(math.log(self.cohort.patches) + _SPREAD * rng.standard_normal())
        size = min(max(size, 0.1 * self.cohort.patches), 6 * self.cohort.patches)
        return max(9, round(self.options.scale * size))

    def _numbers(self, slide_id: str, part: int) -> np.random.Generator:
        return np.random.default_rng([self.options.seed, zlib.crc32(slide_id.encode()), part])

    def _lesions(
        self, label: str, cells: Int[np.ndarray, "N 2"], rng: np.random.Generator
    ) -> list[Lesion]:
        """Draw the lesions of a slide: kinds and shares of the patches, then their places."""
        wanted: list[tuple[int, float, str, bool]] = []
        match self.cohort.name:
            case "camelyon16" if label == "tumor":
                share = (
                    0.0 if rng.random() < 0.05 else min(0.6, 0.04 * math.exp(1.4 * rng.normal()))
                )
                count = int(rng.integers(1, 4))
                wanted = [(0, part, "_0", True) for part in share * rng.dirichlet([2.0] * count)]
            case "tcga-nsclc":
                kind = self.cohort.classes.index(label)
                wanted = [(kind, rng.uniform(0.3, 0.8), label, True)]
            case "panda" if label in _PATTERNS:
                share = rng.uniform(0.05, 0.6)
                wanted = [
                    (kind, share * part, f"pattern {3 + kind}", True)
                    for kind, part in enumerate(_PATTERNS[label])
                    if part
                ]
            case "bracs":
                order = ("BT", "AT", "MT")
                for name in order[: order.index(label) + 1]:
                    if name == label or rng.random() < 0.5:
                        kind = self.cohort.classes.index(name)
                        share = rng.uniform(0.03, 0.25)
                        wanted.append((kind, share, _SUBTYPES[name], name == label))
            case _:
                pass
        lesions = []
        for kind, share, name, counts in wanted:
            middle = cells[rng.integers(len(cells))] + 0.5
            phases = rng.uniform(0, 2 * np.pi, 2)
            # The smallest holds the patch that it is drawn around.
            radius = max(0.6, math.sqrt(share * len(cells) / math.pi))
            lesions.append(
                Lesion(
                    kind,
                    (float(middle[0]), float(middle[1])),
                    radius,
                    (float(phases[0]), float(phases[1])),
                    name,
                    counts,
                )
            )
        return lesions

    def _features(self, slide: DrawnSlide) -> Float[Tensor, "N D"]:
        rng = self._numbers(slide.slide_id, 2)
        generator = torch.Generator(self._device).manual_seed(int(rng.integers(2**62)))
        cells = torch.from_numpy(slide.cells).to(self._device, torch.float32)
        points = cells[torch.from_numpy(rng.integers(len(cells), size=_POINTS)).to(self._device)]
        kinds_of_points = torch.from_numpy(rng.integers(_PHENOTYPES, size=_POINTS))
        nearest = torch.cdist(cells, points).argmin(1)
        phenotype = kinds_of_points.to(self._device)[nearest]
        shift = torch.from_numpy(rng.normal(0, _SLIDE_SHIFT, self.options.dim)).to(
            self._device, torch.float32
        )
        noise = torch.randn(len(cells), self.options.dim, generator=generator, device=self._device)
        features = noise.mul_(_NOISE).add_(self._centres[phenotype]).add_(shift)
        kinds = torch.from_numpy(slide.kinds).to(self._device)
        inside = kinds >= 0
        if bool(inside.any()):
            types = torch.from_numpy(rng.integers(_TYPES, size=_POINTS)).to(self._device)[nearest]
            which = kinds[inside] * _TYPES + types[inside]
            degree = torch.rand(int(inside.sum()), 1, generator=generator, device=self._device)
            features[inside] += (0.5 + 0.5 * degree) * self._directions[which]
        return features.half()

    @cached_property
    def _centres(self) -> Float[Tensor, "P D"]:
        rng = np.random.default_rng([self.options.seed, 11])
        centres = rng.normal(0, 0.3, (_PHENOTYPES, self.options.dim))
        leaning = rng.integers(self._num_directions, size=_PHENOTYPES // 3)
        centres[: len(leaning)] += _LEAN * self._directions.cpu().numpy()[leaning]
        return torch.from_numpy(centres).to(self._device, torch.float32)

    @cached_property
    def _directions(self) -> Float[Tensor, "K D"]:
        """Shift of each type of each kind; types of a kind have half of it in common."""
        rng = np.random.default_rng([self.options.seed, 12])
        kinds = self._num_directions // _TYPES
        common = rng.normal(size=(kinds, 1, self.options.dim))
        own = rng.normal(size=(kinds, _TYPES, self.options.dim))
        directions = (common + own).reshape(-1, self.options.dim)
        directions *= _LESION / np.linalg.norm(directions, axis=1, keepdims=True)
        return torch.from_numpy(directions).to(self._device, torch.float32)

    @property
    def _num_directions(self) -> int:
        return _TYPES * max(3, len(self.cohort.classes))
