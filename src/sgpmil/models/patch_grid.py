r"""Smoothing of a value of each patch over its neighbours on the slide.

Patches lie on a grid whose pitch is their side in level-0 pixels. The cell of a patch is its
corner relative to the bag's least, divided by the pitch and rounded. A value is smoothed with a
3×3 Gaussian kernel $k$ of $\sigma = \tfrac12$; cells without a patch count as 0:

$$ \bar v_i = k_{00} v_i + \sum_{d \ne 0} k_d \; \mathrm{mean}\{v_j : c_j = c_i + d\}. $$

Where every cell holds one patch this is the convolution of the map; where coordinates are
irregular and several patches fall into one cell, each keeps its own value. The grid is never
laid out: a slide's is mostly empty.
"""

import math

import torch
from torch import Tensor

from sgpmil.shapes import Float, Int

_SIGMA = 0.5
_STEPS = [(dx, dy) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
_HEIGHTS = {(dx, dy): math.exp(-(dx**2 + dy**2) / (2 * _SIGMA**2)) for dx, dy in _STEPS}
KERNEL = {step: height / sum(_HEIGHTS.values()) for step, height in _HEIGHTS.items()}
"""Weight of the patch at each step (x, y) from the centre; they sum to 1."""


def grid_pitch(
    coords: Int[Tensor, "T 2"], bag_index: Int[Tensor, " T"], num_bags: int
) -> Int[Tensor, " B"]:
    """Guess each bag's pitch: the most frequent distance of neighbours in a row or a column.

    The smallest distance of two columns would be wrong: pieces of tissue that were tiled one by
    one lie on separate grids, a few pixels apart.
    """
    x, y = coords.long().unbind(1)
    # Where no two patches share a row or a column, no patch has a neighbour and any pitch is right.
    largest = torch.iinfo(torch.int32).max
    steps, bags = zip(
        _steps(x, y, bag_index, num_bags), _steps(y, x, bag_index, num_bags), strict=True
    )
    keys = torch.cat(bags) * (largest + 1) + torch.cat(steps)
    kinds, _, counts = _distinct(keys, num_bags * (largest + 1))
    bag, step = kinds // (largest + 1), kinds % (largest + 1)
    # The last place is for distances that belong to no bag.
    most = counts.new_zeros(num_bags + 1).scatter_reduce(0, bag, counts, "amax")
    frequent = step.where(counts == most[bag], largest)
    pitch = step.new_full((num_bags + 1,), largest)
    return pitch.scatter_reduce(0, bag, frequent, "amin")[:num_bags]


def grid_cells(
    coords: Int[Tensor, "T 2"], bag_index: Int[Tensor, " T"], pitch: Int[Tensor, " B"]
) -> Int[Tensor, "T 2"]:
    """Find the grid cell (column, row) of each patch; each bag's begin at 0.

    Example:
        >>> corners = torch.tensor([[1000, 7], [1448, 7], [1000, 455]])
        >>> grid_cells(corners, torch.tensor([0, 0, 0]), torch.tensor([448])).tolist()
        [[0, 0], [1, 0], [0, 1]]
    """
    corners = coords.long()
    largest = torch.iinfo(torch.long).max
    least = corners.new_full((len(pitch), 2), largest).scatter_reduce(
        0, bag_index.unsqueeze(1).expand_as(corners), corners, "amin"
    )
    side = pitch.long()[bag_index].unsqueeze(1)
    # Rounded in whole numbers, half always upwards: patches one pitch apart are then always one
    # cell apart, wherever their own grid begins.
    return (2 * (corners - least[bag_index]) + side) // (2 * side)


def smooth(
    values: Float[Tensor, "S T"], cells: Int[Tensor, "T 2"], bag_index: Int[Tensor, " T"]
) -> Float[Tensor, "S T"]:
    """Smooth the values of packed instances on the grids of their bags.

    Args:
        values: Values of the instances, a row for each sample.
        cells: Column and row of each instance (see `grid_cells`).
        bag_index: Bag of each instance; bags never mix.

    Example:
        >>> cells = torch.tensor([[0, 0], [1, 0]])
        >>> smooth(torch.tensor([[1.0, 0.0]]), cells, torch.tensor([0, 0]))
        tensor([[0.6193, 0.0838]])
    """
    column, row = cells.unbind(1)
    # A frame of empty cells: a step beyond one edge must not reach the opposite edge.
    width, height = column.max() + 3, row.max() + 3
    key = (bag_index * height + row + 1) * width + column + 1
    occupied, cell_of, count = _distinct(key, torch.iinfo(torch.long).max)
    sums = torch.zeros_like(values).index_add(1, cell_of, values)
    means = sums / count.clamp(min=1)
    around = torch.zeros_like(means)
    for (dx, dy), weight in KERNEL.items():
        if (dx, dy) == (0, 0):
            continue
        wanted = occupied + dy * width + dx
        place = torch.searchsorted(occupied, wanted).clamp(max=len(occupied) - 1)
        around = around + weight * means[:, place].where(occupied[place] == wanted, 0)
    return KERNEL[0, 0] * values + around[:, cell_of]


def _distinct(
    keys: Int[Tensor, " K"], filler: int
) -> tuple[Int[Tensor, " K"], Int[Tensor, " K"], Int[Tensor, " K"]]:
    """Find the distinct keys, where each key stands among them, and how often each one occurs.

    There are as many places as keys, and fillers (larger than any key, and occurring 0 times) in
    the places that remain: to count the distinct keys would mean to wait for the device.
    """
    ordered, order = keys.sort()
    run = (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0)
    distinct = torch.full_like(keys, filler).scatter(0, run, ordered)
    place = torch.empty_like(run).scatter(0, order, run)
    counts = torch.zeros_like(run).scatter_add(0, run, torch.ones_like(run))
    return distinct, place, counts


def _steps(
    along: Int[Tensor, " T"],
    across: Int[Tensor, " T"],
    bag_index: Int[Tensor, " T"],
    num_bags: int,
) -> tuple[Int[Tensor, " K"], Int[Tensor, " K"]]:
    """Return distances of neighbours in each line of each bag, and their bags.

    Patches that are not neighbours have the distance 0, and a bag beyond the last.
    """
    order = along.argsort()
    order = order[across[order].argsort(stable=True)]
    order = order[bag_index[order].argsort(stable=True)]
    step = along[order].diff()
    same_line = (across[order].diff() == 0) & (bag_index[order].diff() == 0)
    apart = same_line & (step > 0)
    return step.where(apart, 0), bag_index[order][1:].where(apart, num_bags)
