"""Where a slide has tissue."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import SettingsError
from sgpmil.shapes import Bool, Float, UInt8
from sgpmil.slides.optional_part import require_package
from sgpmil.slides.reading import Resolution, Slide
from sgpmil.slides.tissue.area import Tissue, outline
from sgpmil.slides.tissue.fat import find_fat
from sgpmil.slides.tissue.ink import find_ink
from sgpmil.slides.tissue.staining import staining, staining_threshold

__all__ = ["TissueSettings", "segment_tissue", "tissue_mask"]

MOST_PIXELS = 2**23
"""Pixels of the largest image that is segmented: 8 million, some 600 MB while it lasts."""


@dataclass(frozen=True, slots=True)
class TissueSettings:
    """What counts as tissue, in physical units.

    Args:
        pixel: Side of a pixel of the image that is segmented, in microns. Very large slides are
            segmented with larger pixels, to bound the memory.
        smoothing: Gaps and threads narrower than twice this are closed and removed, in microns.
        min_area: Smallest piece of tissue that is kept, in mm². (Of a picture that is hardly
            larger than this, a piece that covers a tenth of it is kept.)
        min_hole: Smallest hole within tissue that is cut out, in mm².
    """

    pixel: float = 8.0
    smoothing: float = 8.0
    min_area: float = 0.02
    min_hole: float = 0.01

    def __post_init__(self) -> None:
        if not (math.isfinite(self.pixel) and self.pixel > 0):
            raise SettingsError(
                f"Expected pixels of more than 0 microns to segment tissue, but got {self.pixel}. "
                "Use 8."
            )
        for name in ("smoothing", "min_area", "min_hole"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise SettingsError(
                    f"Expected '{name}' of the tissue to be 0 or more, but got {value}. "
                    "Leave it out to use the default."
                )


def segment_tissue(
    slide: Slide, resolution: Resolution, settings: TissueSettings | None = None
) -> Tissue:
    """Find the tissue of a slide.

    A reduced image is split into stained tissue and glass by Otsu's threshold of the staining
    (see `staining_threshold`), less pen marks and black filling (see `find_ink`); gaps are
    closed, small holes filled, threads and specks removed.

    Args:
        slide: The slide.
        resolution: Its resolution.
        settings: What counts as tissue.

    Returns:
        The tissue, along the edges of the reduced image's pixels, at whole level-0 pixels.
    """
    settings = TissueSettings() if settings is None else settings
    width, height = slide.size
    pixel = max(settings.pixel, resolution.mpp * math.sqrt(width * height / MOST_PIXELS))
    longest = max(1, math.ceil(max(width, height) * min(1.0, resolution.mpp / pixel)))
    image = slide.thumbnail(longest)
    rows, columns = image.shape[:2]
    pixel = resolution.mpp * math.sqrt((width / columns) * (height / rows))
    mask = tissue_mask(image, pixel, settings)
    return Tissue(
        outline(
            mask,
            np.rint(np.arange(columns + 1) * (width / columns)),
            np.rint(np.arange(rows + 1) * (height / rows)),
        )
    )


def tissue_mask(
    image: UInt8[np.ndarray, "h w 3"], pixel: float, settings: TissueSettings
) -> Bool[np.ndarray, "h w"]:
    """Say which pixels of an image are tissue.

    Args:
        image: The reduced slide.
        pixel: Side of a pixel in microns.
        settings: What counts as tissue.
    """
    require_package("cv2")
    import cv2

    # The glass is noisy; a blur by one pixel moves an edge by less than that.
    smooth = cv2.GaussianBlur(image.astype(np.float32), (0, 0), sigmaX=1.0)
    ink = find_ink(smooth, pixel)
    # White where nothing was scanned says nothing of the glass.
    seen = ~ink & (image.min(axis=2) < 255)
    stain, glass = staining(smooth, seen)
    threshold = staining_threshold(stain, seen, glass)
    stained = stain > threshold
    fat = find_fat(stain, stained | ink, glass, pixel)
    disc = _disc(settings.smoothing, pixel)
    mm2 = (pixel / 1000) ** 2
    closed = cv2.morphologyEx(((stained | fat) & ~ink).astype(np.uint8), cv2.MORPH_CLOSE, disc) > 0
    filled = ~_without_small(~closed, settings.min_hole / mm2, keep_at_border=True) & ~ink
    sharp = _trimmed(filled, stain, threshold)
    opened = cv2.morphologyEx(sharp.astype(np.uint8), cv2.MORPH_OPEN, disc) > 0
    least = min(settings.min_area / mm2, opened.size / 10)
    return _without_small(opened, least, keep_at_border=False)


def _disc(radius: float, pixel: float) -> UInt8[np.ndarray, "d d"]:
    import cv2

    side = 2 * round(radius / pixel) + 1
    return np.asarray(cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side)), dtype=np.uint8)


def _trimmed(
    mask: Bool[np.ndarray, "h w"], stain: Float[np.ndarray, "h w"], threshold: float
) -> Bool[np.ndarray, "h w"]:
    """Move the edge to where the staining is half of that behind it.

    Pixels and the blur mix glass and tissue at the edge; a threshold far below the staining of
    tissue lies at the outer end of that mixture.
    """
    import cv2

    inner = cv2.erode(mask.astype(np.uint8), np.ones((5, 5), np.uint8)).astype(np.float32)
    window = (9, 9)
    share = cv2.blur(inner, window)
    behind = cv2.blur(stain * inner, window) / np.maximum(share, 1e-6)
    outside = (inner == 0) & (behind > 2 * threshold) & (stain < behind / 2)
    return mask & ~outside


def _without_small(
    pieces: Bool[np.ndarray, "h w"], least: float, *, keep_at_border: bool
) -> Bool[np.ndarray, "h w"]:
    """Remove connected pieces of fewer pixels; what reaches the border may go on beyond it."""
    import cv2

    # Tissue is connected over corners, so that glass is not.
    connectivity = 4 if keep_at_border else 8
    _, labels, stats, _ = cv2.connectedComponentsWithStats(
        pieces.astype(np.uint8), connectivity=connectivity
    )
    kept = stats[:, cv2.CC_STAT_AREA] >= least
    if keep_at_border:
        border = (labels[0], labels[-1], labels[:, 0], labels[:, -1])
        kept[np.unique(np.concatenate(border))] = True
    kept[0] = False
    return kept[labels]
