"""Segmentation of tissue."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import SettingsError
from sgpmil.shapes import Bool, Float, UInt8
from sgpmil.slides.optional_part import require_package
from sgpmil.slides.reading import Resolution, Slide
from sgpmil.slides.tissue.contours import Tissue, outline

MOST_PIXELS = 2**23
"""Pixels of the largest image that is segmented: 8 million, which need some 600 MB."""


@dataclass(frozen=True, slots=True)
class TissueSettings:
    """Settings of the segmentation, in physical units.

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
        settings: Settings of the segmentation.

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
    """Return which pixels of an image are tissue."""
    require_package("cv2")
    import cv2

    # The glass is noisy; a blur by one pixel moves an edge by less than that.
    smooth = cv2.GaussianBlur(image.astype(np.float32), (0, 0), sigmaX=1.0)
    ink = find_ink(smooth, pixel)
    # White areas that were not scanned show no glass.
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
    """Remove connected pieces of fewer pixels. A piece at the border may continue beyond it."""
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


FEWEST_GLASS = 0.001
"""Share of the pixels that must look like glass for the slide to have any."""

FAINTEST, FAINT = 0.03, 0.07
"""Saturation below which nothing, and above which everything, is stained."""

_OFFSET = 0.01
_BINS = 255


def staining(
    image: Float[np.ndarray, "h w 3"], usable: Bool[np.ndarray, "h w"]
) -> tuple[Float[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    r"""Measure the staining of each pixel, and find the pixels that look like glass.

    $$ s = \min\Bigl(1 - \frac{\min_c I_c}{\max_c I_c},\;
           1 - \frac{\min_c I_c / g_c}{\max_c I_c / g_c}\Bigr) $$

    with I the colour and g that of the glass: the saturation as it is, and as it would be if
    the glass were white. Shadows, dust and uneven light change I by one factor in all channels
    and so not s. Glass is bright and colourless or yellowish, and never more purple than that,
    as tissue is. Where no pixel looks like glass, all is tissue, and g is white.
    """
    brightest, darkest = image.max(axis=2), image.min(axis=2)
    red, green, blue = (image[:, :, channel] for channel in range(3))
    colour = brightest - darkest
    glass = usable & (brightest > 160) & ((red + blue) / 2 - green < 6)
    glass &= (colour < 20) | ((colour < 40) & (blue <= darkest))
    absolute = 1 - darkest / np.maximum(brightest, 1.0)
    if glass.sum() <= FEWEST_GLASS * usable.sum():
        return absolute, np.zeros_like(glass)
    glass &= brightest > np.percentile(brightest[glass], 98) - 30
    balanced = image / np.maximum(np.median(image[glass], axis=0), 1.0)
    relative = 1 - balanced.min(axis=2) / np.maximum(balanced.max(axis=2), 1e-3)
    return np.minimum(absolute, relative), glass


def staining_threshold(
    stain: Float[np.ndarray, "h w"],
    seen: Bool[np.ndarray, "h w"],
    glass: Bool[np.ndarray, "h w"],
) -> float:
    r"""Find the staining above which a pixel is tissue.

    Otsu's threshold of $\log(s + 0.01)$: on this scale pale and dark tissue are near each other
    and glass is far from both. It is held between what is never tissue (faint, or within six
    standard deviations of the glass) and what always is, so that a slide of nothing but glass,
    or nothing but tissue, is not split in two.
    """
    import cv2

    if not seen.any() or not glass.any():
        return FAINTEST
    of_glass = stain[glass]
    middle = float(np.median(of_glass))
    spread = 1.4826 * float(np.median(np.abs(of_glass - middle)))
    least = max(FAINTEST, middle + 6 * spread)

    low, high = math.log(_OFFSET), math.log(1 + _OFFSET)
    level = (np.log(stain[seen] + _OFFSET) - low) / (high - low) * _BINS
    split, _ = cv2.threshold(
        level.clip(0, _BINS).astype(np.uint8)[None], 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU
    )
    otsu = math.exp(low + (split + 1) / _BINS * (high - low)) - _OFFSET
    return min(max(otsu, least), max(FAINT, least))


CELL = 80.0
"""About the diameter of a fat cell, in microns."""

LEAST_MEAN, LEAST_SPREAD = 0.008, 0.006
"""Least mean and standard deviation of the staining over a cell and its walls."""


def find_fat(
    stain: Float[np.ndarray, "h w"],
    stained: Bool[np.ndarray, "h w"],
    glass: Bool[np.ndarray, "h w"],
    pixel: float,
) -> Bool[np.ndarray, "h w"]:
    r"""Find where pale walls cross what would otherwise be glass.

    Over a window the size of a cell, the staining of what is not stained tissue has a mean and
    a standard deviation. Both are larger in fat than on glass; a tint of the glass raises the
    mean alone, and grey dust neither.
    """
    import cv2

    width = 2 * round(CELL / pixel / 2) + 1
    if width < 3 or not glass.any():
        return np.zeros_like(stained)
    # An edge of tissue is blurred over two pixels, which are no walls.
    edge = cv2.dilate(stained.astype(np.uint8), np.ones((5, 5), np.uint8))
    free = (edge == 0).astype(np.float32)

    def mean(values: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"]:
        total: Float[np.ndarray, "h w"] = cv2.blur(values * free, (width, width))
        return total

    share = np.maximum(mean(np.ones_like(free)), 1 / width**2)
    middle = mean(stain) / share
    spread = np.sqrt(np.maximum(mean(stain**2) / share - middle**2, 0))
    usual_middle = float(np.median(middle[glass]))
    usual_spread = float(np.median(spread[glass]))
    return (
        (free > 0)
        & (share > 0.25)
        & (middle > max(LEAST_MEAN, 2 * usual_middle))
        & (spread > max(LEAST_SPREAD, 4 * usual_spread))
    )


REACH = 64.0
"""Width of the blurred edge of a stroke, in microns."""

LEAST_AREA = 0.003
"""Least area of a stroke in mm²: a dark or vivid speck is a nucleus or pigment."""


def find_ink(image: Float[np.ndarray, "h w 3"], pixel: float) -> Bool[np.ndarray, "h w"]:
    r"""Find pen marks (blue, green, red, black) and black filling.

    Haematoxylin and eosin both absorb green most, so tissue is never bluer than it is purple:
    its red is at least its green. Blue and green ink have less red than green. Red ink absorbs
    green and blue alike and nearly wholly; eosin leaves more blue than green, and erythrocytes
    leave more of both. Black ink and black filling are dark without a colour.

    Of each kind a vivid core must be there; from it, paler pixels of the same kind are followed
    a short way, over the blurred edge of the stroke.
    """
    red, green, blue = (np.ascontiguousarray(image[:, :, channel]) for channel in range(3))
    highest = np.maximum(image.max(axis=2), 1.0)
    saturation = 1 - image.min(axis=2) / highest
    purple = (red + blue) / 2 - green
    colder = (green - red) / highest

    is_blue = blue >= highest
    cold = (
        ((saturation > 0.35) & (colder > 0.12))
        | ((saturation > 0.40) & is_blue & (red < 1.1 * green))
        | ((saturation > 0.58) & is_blue & (red < 1.3 * green))
        | ((saturation > 0.15) & (green - np.maximum(red, blue) > 0.08 * highest))
    )
    is_red = (red >= highest) & (np.abs(green - blue) < 0.18 * red)
    vivid_red = is_red & (saturation > 0.72) & (red > 150)
    dark = (highest < 66) | ((highest < 140) & (purple < 0.08 * highest) & (saturation < 0.25))

    ink = _stroke(cold, (colder > 0.02) | (is_blue & (red < 1.1 * green)), pixel)
    ink |= _stroke(vivid_red, is_red & (np.abs(green - blue) < 0.2 * (red - green)), pixel)
    ink |= _stroke(dark, (purple < 8) & (saturation < 0.25), pixel)
    return ink


def _stroke(
    core: Bool[np.ndarray, "h w"], paler: Bool[np.ndarray, "h w"], pixel: float
) -> Bool[np.ndarray, "h w"]:
    import cv2

    _, labels, stats, _ = cv2.connectedComponentsWithStats(core.astype(np.uint8), connectivity=8)
    large = stats[:, cv2.CC_STAT_AREA] * pixel**2 >= LEAST_AREA * 1e6
    large[0] = False
    core = large[labels]
    if not core.any():
        return core
    radius = max(1, round(REACH / pixel))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    near = cv2.dilate(core.astype(np.uint8), disc) > 0
    return core | (near & paler)
