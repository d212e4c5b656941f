"""How large patches are, and which are kept."""

import math
from dataclasses import dataclass

from sgpmil.errors import SettingsError

__all__ = ["PatchSettings"]


@dataclass(frozen=True, slots=True)
class PatchSettings:
    """How large patches are, and which are kept. Exactly one of magnification and mpp is given.

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
