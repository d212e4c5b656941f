"""Maps of a slide: the scores and prototypes of its patches as images, exact to the pixel."""

from dataclasses import dataclass
from math import ceil, gcd, sqrt
from typing import Literal, get_args

import numpy as np

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.shapes import Float, Int


def placed_coords(scores: InstanceScores) -> Int[np.ndarray, "N 2"]:
    """Give the top-left corners of the instances, which every map and export needs.

    Raises:
        ExplanationError: The scores have no coordinates, or there is no instance.
    """
    if scores.coords is None:
        raise ExplanationError(
            "Expected scores with the coordinates of their patches, but got none. "
            "Predict again from embeddings that were stored with 'coords'."
        )
    if not scores.num_instances:
        raise ExplanationError(
            "Expected the scores of at least one patch, but got none. Leave this slide out."
        )
    return scores.coords


def patch_side(scores: InstanceScores) -> int:
    """Give the side of a patch in level-0 pixels.

    Where it was not stored, it is the spacing of the patches: the commonest step between
    neighbours of a row or a column or, where no two share one, the median distance (the larger
    of the two axes') to the nearest other. Patches that overlap are then drawn too small.

    Raises:
        ExplanationError: The scores have no coordinates, or the side is unknown and there is
            only one place to infer it from.

    Example:
        >>> coords = np.array([[0, 0], [256, 0], [512, 0], [131, 256], [387, 256]])
        >>> patch_side(InstanceScores(np.ones(5), np.zeros(5), coords=coords))
        256
    """
    coords = placed_coords(scores)
    if scores.patch_size is not None:
        if scores.patch_size < 1:
            raise ExplanationError(
                f"Expected patches of at least one pixel, but got a side of {scores.patch_size}. "
                "Store the embeddings with 'patch_size_level0'."
            )
        return scores.patch_size
    places = np.unique(coords.astype(np.int64), axis=0)
    if len(places) < 2:
        raise ExplanationError(
            "Expected patches of a known size, but it was not stored and cannot be inferred from "
            "a single place. Store the embeddings with 'patch_size_level0'."
        )
    steps = np.concatenate([_steps(places, axis) for axis in (0, 1)])
    if len(steps):
        found, counts = np.unique(steps, return_counts=True)
        return int(found[np.argmax(counts)])
    from scipy.spatial import cKDTree  # slow to import, seldom needed

    nearest, _ = cKDTree(places).query(places, k=2, p=np.inf)
    return max(1, round(float(np.median(nearest[:, 1]))))


def _steps(places: Int[np.ndarray, "N 2"], axis: int) -> Int[np.ndarray, " K"]:
    """Steps along an axis between neighbours that are level on the other one."""
    ordered = places[np.lexsort((places[:, axis], places[:, 1 - axis]))]
    level = ordered[1:, 1 - axis] == ordered[:-1, 1 - axis]
    return np.diff(ordered[:, axis])[level]


ScaleKind = Literal["absolute", "rank", "minmax"]
"""`absolute`: the scores themselves, which can be compared between slides. `rank` and `minmax`:
relative to the slide, so that its highest score is 1 whatever it is."""


def scaled(values: Float[np.ndarray, " N"], scale: ScaleKind) -> Float[np.ndarray, " N"]:
    r"""Put the scores of a slide on a scale.

    With the average rank $r_k \in [1, N]$ of score $a_k$ among the N finite ones,

    $$ \text{rank: } \frac{r_k - 1}{N - 1}, \qquad
       \text{minmax: } \frac{a_k - \min_j a_j}{\max_j a_j - \min_j a_j}. $$

    Scores that are all equal (or a single one) have no order, and become 1/2. What is NaN stays
    NaN and is left out of the rest.

    Raises:
        ExplanationError: There is no such scale, or a score is infinite.

    Example:
        >>> scaled(np.array([3.0, 1.0, 1.0, 9.0]), "rank").round(2)
        array([0.67, 0.17, 0.17, 1.  ])
        >>> scaled(np.array([3.0, 1.0, 1.0, 9.0]), "minmax")
        array([0.25, 0.  , 0.  , 1.  ])
    """
    if scale not in get_args(ScaleKind):
        raise ExplanationError(
            f"Expected the scale 'absolute', 'rank' or 'minmax', but got '{scale}'. "
            "Choose one of the three."
        )
    if np.isinf(values).any():
        raise ExplanationError(
            "Expected finite scores, but got an infinite one. Check the model that gave them."
        )
    if scale == "absolute":
        return values
    known = ~np.isnan(values)
    result = np.full(len(values), np.nan)
    numbers = values[known].astype(np.float64)
    if not len(numbers):
        return result
    lowest, highest = numbers.min(), numbers.max()
    if lowest == highest:
        result[known] = 0.5
    elif scale == "rank":
        from scipy.stats import rankdata  # half a second to import, seldom needed

        result[known] = (rankdata(numbers) - 1) / (len(numbers) - 1)
    else:
        # Halved first: the difference of two large numbers need not be a number.
        result[known] = (numbers / 2 - lowest / 2) / (highest / 2 - lowest / 2)
    return result


NO_PATCH = -1
"""The value of a pixel of a label map that no patch covers."""

Extent = tuple[float, float, float, float]

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
    def extent(self) -> Extent:
        """Left, right, bottom and top in level-0 pixels, as `matplotlib.pyplot.imshow` takes them.

        Example:
            >>> ScoreMap(np.zeros((2, 3)), 64.0, (100, 0)).extent
            (100.0, 292.0, 128.0, 0.0)
        """
        return _extent(self.values.shape, self.downsample, self.origin)


@dataclass(frozen=True, slots=True, eq=False)
class LabelMap:
    """An image of the slide whose pixels are numbers of prototypes, which are never averaged.

    Args:
        values: Number at each pixel's centre; `NO_PATCH` where no patch covers it.
        downsample: Side of a pixel in level-0 pixels.
        origin: Top-left corner (x, y) of the image in level-0 pixels.
    """

    values: Int[np.ndarray, "h w"]
    downsample: float
    origin: tuple[int, int]

    @property
    def extent(self) -> Extent:
        """Left, right, bottom and top in level-0 pixels."""
        return _extent(self.values.shape, self.downsample, self.origin)


def _extent(shape: tuple[int, ...], downsample: float, origin: tuple[int, int]) -> Extent:
    left, top = map(float, origin)
    return left, left + shape[1] * downsample, top + shape[0] * downsample, top


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
        # Counting passes over the whole map: it pays where a part paints much of it.
        if len(pixels) > len(total) // 8:
            total += np.bincount(pixels, weighted, len(total))
            area += np.bincount(pixels, areas, len(area))
        else:
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


def label_map(
    coords: Int[np.ndarray, "N 2"],
    side: int,
    labels: Int[np.ndarray, " N"],
    priority: Float[np.ndarray, " N"] | None = None,
    *,
    most_pixels: int = 4_000_000,
) -> LabelMap:
    """Paint patches with their numbers.

    The raster is exact where its pixels may be small enough that all patches begin and end
    between pixels; otherwise each pixel is sampled at its centre, and a patch is a whole number
    of pixels wide.

    Args:
        coords: Top-left corner (x, y) of each patch in level-0 pixels.
        side: Side of a patch in level-0 pixels.
        labels: Number of each patch.
        priority: Where patches overlap, the one of the largest priority lies on top; the last by
            default.
        most_pixels: About the most pixels of the raster.

    Raises:
        ExplanationError: There are no patches, or they have no size.

    Example:
        >>> label_map(np.array([[4, 0], [8, 2]]), 4, np.array([7, 3])).values
        array([[ 7,  7, -1, -1],
               [ 7,  7,  3,  3],
               [-1, -1,  3,  3]], dtype=int32)
    """
    if len(coords) == 0 or side < 1:
        raise ExplanationError(
            f"Expected patches with an area for a map, but got {len(coords)} of side {side}. "
            "Extract the bags with coordinates."
        )
    start = coords.min(axis=0)
    offset = (coords - start).astype(np.int64)
    across, down = (offset.max(axis=0) + side).tolist()
    step = gcd(side, int(np.gcd.reduce(offset, axis=None)))
    pixels = side // step  # of a patch's side
    fewer = side * (most_pixels / (across * down)) ** 0.5
    pixels = max(1, min(pixels, int(fewer), int((_MOST_PAINTED / len(coords)) ** 0.5)))
    downsample = side / pixels
    order = np.arange(len(labels)) if priority is None else np.argsort(priority, kind="stable")
    # The first pixel whose centre lies in the patch.
    first = np.ceil(offset[order] / downsample - 0.5).astype(np.int64)
    width, height = (first.max(axis=0) + pixels).tolist()
    values = np.full((height, width), NO_PATCH, dtype=np.int32)
    within = np.arange(pixels)
    numbers = labels[order]
    patches = max(1, _AT_ONCE // pixels**2)
    for begin in range(0, len(order), patches):
        piece = slice(begin, begin + patches)
        rows = first[piece, 1, None, None] + within[:, None]
        columns = first[piece, 0, None, None] + within
        # Of equal places, numpy keeps the last written.
        values[rows, columns] = numbers[piece, None, None]
    return LabelMap(values, downsample, (int(start[0]), int(start[1])))
