"""Scores become an image of the slide, exact to the pixel."""

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from sgpmil.errors import ExplanationError
from sgpmil.shapes import Bool, Float, Int

__all__ = ["ScoreMap", "score_map"]

_MOST_PAINTED = 100_000_000
"""Most pixels to paint over all patches, which bounds the time where they overlap heavily."""
_AT_ONCE = 1_000_000
"""Pixels to paint at a time, which bounds the memory."""
_SLIVER = 1e-9
"""Shares of a pixel below this come from rounding: nothing is there."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMap:
    """An image of the slide whose pixels are scores.

    The pixel in row i and column j covers the level-0 pixels from
    ``origin + (j, i) * downsample`` to ``origin + (j + 1, i + 1) * downsample``.

    Args:
        values: Score of each pixel (rows, columns); NaN where there is no patch.
        downsample: Side of a pixel in level-0 pixels.
        origin: Top-left corner of the image in level-0 pixels (x, y).
    """

    values: Float[np.ndarray, "h w"]
    downsample: float
    origin: tuple[int, int]

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top in level-0 pixels, as `matplotlib.pyplot.imshow` takes them.

        Example:
            >>> ScoreMap(np.zeros((2, 3)), 64.0, (100, 0)).extent
            (100.0, 292.0, 128.0, 0.0)
        """
        rows, columns = self.values.shape
        left, top = self.origin
        right, bottom = left + columns * self.downsample, top + rows * self.downsample
        return float(left), float(right), float(bottom), float(top)

    @property
    def covered(self) -> Bool[np.ndarray, "h w"]:
        """Which pixels have a score."""
        return ~np.isnan(self.values)


def score_map(
    coords: Int[np.ndarray, "N 2"],
    side: int,
    values: Float[np.ndarray, " N"],
    *,
    slide_size: tuple[int, int] | None = None,
    downsample: float | None = None,
    most_pixels: int = 4_000_000,
) -> ScoreMap:
    r"""Lay the scores of patches where the patches are.

    A pixel p is the mean of the patches k that lie in it, by the areas they take of it:

    $$ m_p = \frac{\sum_k |p \cap k| \, a_k}{\sum_k |p \cap k|}, $$

    and NaN where there is none. So a pixel that lies wholly in one patch is exactly its score,
    and patches that overlap are averaged. Where the downsample divides the side and the patches
    lie on a grid, every pixel is of that kind. Patches whose score is NaN are left out.

    Args:
        coords: Top-left corners of the patches in level-0 pixels (x, y).
        side: Side of a patch in level-0 pixels.
        values: Score of each patch.
        slide_size: Width and height of the slide in level-0 pixels: the map then covers the
            slide, and nothing beyond it. Without, it covers the patches.
        downsample: Side of a map pixel in level-0 pixels. By default the smallest whole number
            that `most_pixels` allows, made larger so as to divide the side where that costs
            less than twice the resolution.
        most_pixels: Most pixels of the map.

    Raises:
        ExplanationError: The numbers do not describe patches, none lies on the slide, or the map
            would have too many pixels.

    Example:
        >>> coords = np.array([[0, 0], [512, 0], [0, 512]])
        >>> score_map(coords, 512, np.array([0.1, 0.2, 0.3]), downsample=512.0).values
        array([[0.1, 0.2],
               [0.3, nan]], dtype=float32)
    """
    _check_patches(len(coords), side, values)
    _check_map(slide_size, downsample, most_pixels)
    known = ~np.isnan(values)
    corners, scores = coords.astype(np.int64), values.astype(np.float64)
    if slide_size is None:
        low, high = corners.min(axis=0), corners.max(axis=0) + side
    else:
        low, high = np.zeros(2, dtype=np.int64), np.array(slide_size, dtype=np.int64)
    starts = np.maximum(corners, low) - low
    ends = np.minimum(corners + side, high) - low
    inside = (ends > starts).all(axis=1)
    if not inside.any():
        raise ExplanationError(
            f"Expected patches on a slide of {slide_size} pixels, but all lie outside, the first "
            f"at {tuple(corners[0].tolist())}. Give the slide that the embeddings are of, and "
            "coordinates in level-0 pixels."
        )
    size = high - low
    if downsample is None:
        downsample = _fitting_downsample(size, side, int(inside.sum()), most_pixels)
    columns, rows = (_num_pixels(int(length), downsample) for length in size)
    if columns * rows > most_pixels:
        raise ExplanationError(
            f"Expected a map of at most {most_pixels:,} pixels, but a downsample of {downsample:g} "
            f"makes it {columns:,} by {rows:,}. Use a larger downsample or allow more pixels."
        )
    kept = inside & known
    painted = _paint(starts[kept], ends[kept], scores[kept], float(downsample), (rows, columns))
    return ScoreMap(painted, float(downsample), (int(low[0]), int(low[1])))


def _fitting_downsample(
    size: Int[np.ndarray, "2"], side: int, num_patches: int, most_pixels: int
) -> float:
    width, height = (int(length) for length in size)
    least = max(sqrt(width * height / most_pixels), side * sqrt(num_patches / _MOST_PAINTED))
    fitting = max(1, ceil(least))
    while _num_pixels(width, fitting) * _num_pixels(height, fitting) > most_pixels:
        fitting += 1  # the last row and column round up
    dividing = next((d for d in range(fitting, 2 * fitting) if side % d == 0), fitting)
    return float(dividing)


def _num_pixels(length: int, downsample: float | int) -> int:
    return max(1, ceil(length / downsample - _SLIVER))


def _paint(
    starts: Int[np.ndarray, "N 2"],
    ends: Int[np.ndarray, "N 2"],
    scores: Float[np.ndarray, " N"],
    downsample: float,
    shape: tuple[int, int],
) -> Float[np.ndarray, "h w"]:
    total, area = np.zeros(shape[0] * shape[1]), np.zeros(shape[0] * shape[1])
    span = ceil(float((ends - starts).max(initial=1)) / downsample) + 1
    step = max(1, _AT_ONCE // span**2)
    for first in range(0, len(starts), step):
        part = slice(first, first + step)
        columns, widths = _shares(starts[part, 0], ends[part, 0], downsample, span, shape[1])
        rows, heights = _shares(starts[part, 1], ends[part, 1], downsample, span, shape[0])
        pixels = (rows[:, :, None] * shape[1] + columns[:, None, :]).reshape(-1)
        areas = (heights[:, :, None] * widths[:, None, :]).reshape(-1)
        weighted = (areas.reshape(-1, span * span) * scores[part, None]).reshape(-1)
        np.add.at(total, pixels, weighted)
        np.add.at(area, pixels, areas)
    result = np.full(len(total), np.nan, dtype=np.float32)
    np.divide(total, area, out=total, where=area > 0)
    result[area > 0] = total[area > 0]
    return result.reshape(shape)


def _shares(
    starts: Int[np.ndarray, " N"],
    ends: Int[np.ndarray, " N"],
    downsample: float,
    span: int,
    length: int,
) -> tuple[Int[np.ndarray, "N K"], Float[np.ndarray, "N K"]]:
    """Give the pixels along one axis that each patch touches, and how much of each it takes."""
    first = np.floor(starts / downsample + _SLIVER).astype(np.int64)
    pixels = first[:, None] + np.arange(span)
    left = pixels * downsample
    shares = np.minimum(ends[:, None], left + downsample) - np.maximum(starts[:, None], left)
    shares = np.where(shares > _SLIVER * downsample, shares / downsample, 0.0)
    return np.minimum(pixels, length - 1), shares


def _check_patches(num_patches: int, side: int, values: Float[np.ndarray, " K"]) -> None:
    if num_patches != len(values) or not num_patches:
        raise ExplanationError(
            f"Expected one score for each of one or more patches, but got {len(values)} scores "
            f"for {num_patches} patches. Take both from the same slide."
        )
    if side < 1:
        raise ExplanationError(
            f"Expected patches of at least one pixel, but got a side of {side}. "
            "Give the side in level-0 pixels."
        )
    if (np.abs(values) > np.finfo(np.float32).max).any():
        raise ExplanationError(
            "Expected finite scores, but got an infinite one. Check the model that gave them."
        )


def _check_map(
    slide_size: tuple[int, int] | None, downsample: float | None, most_pixels: int
) -> None:
    if most_pixels < 1 or (slide_size is not None and min(slide_size) < 1):
        raise ExplanationError(
            f"Expected a slide and a map of at least one pixel, but got a slide of {slide_size} "
            f"and a map of at most {most_pixels} pixels. Give the slide's width and height."
        )
    if downsample is not None and not 0 < downsample < float("inf"):
        raise ExplanationError(
            f"Expected a downsample greater than zero, but got {downsample}. "
            "Give the side of a map pixel in level-0 pixels."
        )
