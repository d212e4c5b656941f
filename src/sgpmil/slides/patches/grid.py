"""Grids of patches on tissue."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import SettingsError
from sgpmil.shapes import Int
from sgpmil.slides.annotations.patch_labels import TOLERANCE, patch_coverage
from sgpmil.slides.annotations.regions import Annotations, Region
from sgpmil.slides.optional_part import require_package
from sgpmil.slides.reading import Resolution, Slide, level0_side
from sgpmil.slides.tissue.contours import Tissue


@dataclass(frozen=True, slots=True)
class PatchSettings:
    """Settings of the grid. Exactly one of magnification and mpp is given.

    Args:
        size: Side of a patch in pixels, at the target resolution.
        overlap: Pixels that neighbours share, at the target resolution.
        magnification: Target magnification, in nominal magnifications (see `level0_side`).
        mpp: Target pixel size in microns.
        min_tissue: Least share of a patch that is tissue; 0 keeps any patch that touches some.

    Raises:
        SettingsError: A value is impossible, or not exactly one target is given.
    """

    size: int = 256
    overlap: int = 0
    magnification: float | None = 20.0
    mpp: float | None = None
    min_tissue: float = 0.25

    def __post_init__(self) -> None:
        if self.size < 1:
            raise SettingsError(
                f"Expected a patch size of at least 1 px, but got {self.size}. Use 256."
            )
        if not 0 <= self.overlap < self.size:
            raise SettingsError(
                f"Expected an overlap from 0 to less than the patch size of {self.size} px, but "
                f"got {self.overlap}. Use 0 for none."
            )
        if (self.magnification is None) == (self.mpp is None):
            found = "neither" if self.mpp is None else f"{self.magnification:g}× and {self.mpp:g}"
            raise SettingsError(
                "Expected a target magnification or target microns per pixel, but got "
                f"{found}. Give one of them."
            )
        target = self.mpp if self.magnification is None else self.magnification
        if target is None or not math.isfinite(target) or target <= 0:
            raise SettingsError(
                "Expected a target magnification or microns per pixel above 0, but got "
                f"{target}. Give a positive number."
            )
        if not 0 <= self.min_tissue <= 1:
            raise SettingsError(
                f"Expected a least share of tissue from 0 to 1, but got {self.min_tissue}. "
                "Use 0.25."
            )

    @property
    def target_magnification(self) -> float:
        r"""The target magnification: as given, or $10/\mathrm{mpp}$."""
        if self.magnification is not None:
            return self.magnification
        assert self.mpp is not None  # noqa: S101 (refused above)
        return 10.0 / self.mpp


_MOST_AT_ONCE = 2**18
"""Patches whose share of tissue is measured at once, to bound the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """Positions of a slide's patches. None stands for what a file of another tool does not state.

    Args:
        coords: Top-left corner (x, y) of each patch in level-0 pixels, row by row.
        size: Side of a patch in pixels, at the target resolution.
        side: Side of a patch in level-0 pixels.
        overlap: Pixels that neighbours share, at the target resolution.
        level0_magnification: Magnification of level 0.
        target_magnification: Magnification of the patches.
        slide_size: Width and height of the slide in level-0 pixels.
        slide_id: Name of the slide.
    """

    coords: Int[np.ndarray, "N 2"]
    size: int
    side: int
    overlap: int | None
    level0_magnification: float | None
    target_magnification: float | None
    slide_size: tuple[int, int] | None
    slide_id: str


def place_patches(
    tissue: Tissue, slide: Slide, resolution: Resolution, settings: PatchSettings
) -> Patches:
    r"""Lay a grid over a slide and keep the patches on tissue.

    Patch (i, j) begins at $(i t, j t)$ with the step t of `size` less `overlap` pixels of the
    target, in whole level-0 pixels. One grid, from the slide's corner, serves all pieces of
    tissue: a grid for each piece would let patches of neighbouring pieces overlap, so that the
    same tissue counts twice, and an edit of one contour would move patches elsewhere. A patch is
    kept where

    $$ \frac{|Q_{ij} \cap T|}{|Q_{ij}|} \ge \mathrm{min\_tissue}, $$

    the exact share of its square Q that the tissue T covers, and only where it lies within the
    slide.

    Args:
        tissue: The tissue.
        slide: The slide.
        resolution: Its resolution.
        settings: Settings of the grid.

    Raises:
        SlideError: The target is finer than the slide.
    """
    target = {"target_magnification": settings.magnification, "target_mpp": settings.mpp}
    side = level0_side(settings.size, resolution, **target)
    step = max(1, level0_side(settings.size - settings.overlap, resolution, **target))
    candidates = _candidates(tissue, slide.size, side, step)
    drawn = Annotations((Region(tissue.area, "tissue"),))
    shares = [
        patch_coverage(candidates[start : start + _MOST_AT_ONCE], side, drawn)
        for start in range(0, len(candidates), _MOST_AT_ONCE)
    ]
    share = np.concatenate([np.zeros(0), *shares])
    kept = share > 0 if settings.min_tissue == 0 else share >= settings.min_tissue - TOLERANCE
    return Patches(
        coords=candidates[kept],
        size=settings.size,
        side=side,
        overlap=settings.overlap,
        level0_magnification=resolution.magnification,
        target_magnification=settings.target_magnification,
        slide_size=slide.size,
        slide_id=slide.slide_id,
    )


def _candidates(
    tissue: Tissue, slide_size: tuple[int, int], side: int, step: int
) -> Int[np.ndarray, "M 2"]:
    """Return the patches of the grid that overlap the tissue's bounding box, row by row."""
    require_package("shapely")
    if tissue.area.is_empty:
        return np.zeros((0, 2), dtype=np.int64)
    left, top, right, bottom = tissue.area.bounds
    axes = []
    for length, low, high in zip(slide_size, (left, top), (right, bottom), strict=True):
        starts = np.arange(0, length - side + 1, step, dtype=np.int64)
        axes.append(starts[(starts + side > low) & (starts < high)])
    x, y = np.meshgrid(*axes)
    return np.stack([x.ravel(), y.ravel()], axis=1)
