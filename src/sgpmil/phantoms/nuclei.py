"""Nuclei: pictures of single ones, and where they lie.

Each kind of cell has an album of pictures, drawn once for a resolution. A picture holds the
concentration of haematoxylin; where nuclei overlap the stronger one shows, so that the order in
which they are laid down does not matter.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sgpmil.phantoms.textures import draw
from sgpmil.shapes import Float, Int, UInt8

DIRECTIONS = 16
"""Directions of which an album has pictures, over half a turn."""
_FINER = 4
"""Pictures are drawn this many times finer, and averaged."""


@dataclass(frozen=True, slots=True)
class NucleusKind:
    """Appearance of the nuclei of a kind of cell. Lengths are in microns.

    Args:
        length: Smallest and largest length.
        slimness: Smallest and largest length over width.
        darkness: Smallest and largest concentration of haematoxylin, of 255.
        irregularity: How far the outline strays from an ellipse, as a share of the radius.
        clumps: Contrast of the chromatin.
        pale: Share of nuclei with a pale middle and a dark rim.
        nucleoli: Largest number of nucleoli.
        variants: Pictures a direction.
    """

    length: tuple[float, float]
    slimness: tuple[float, float]
    darkness: tuple[float, float]
    irregularity: float = 0.04
    clumps: float = 0.15
    pale: float = 0.0
    nucleoli: int = 0
    variants: int = 4


KINDS = {
    "fibroblast": NucleusKind((8.0, 13.0), (2.6, 4.5), (95.0, 160.0), 0.08, variants=5),
    "lymphocyte": NucleusKind((5.6, 7.4), (1.0, 1.2), (150.0, 195.0), 0.04, 0.22, variants=4),
    "epithelial": NucleusKind((7.0, 9.0), (1.25, 1.7), (100.0, 150.0), 0.05, 0.2, 0.3, 1, 5),
    "tumour": NucleusKind((9.5, 15.0), (1.0, 1.7), (72.0, 158.0), 0.14, 0.3, 0.6, 3, 10),
    "red cell": NucleusKind((6.0, 7.5), (1.0, 1.15), (90.0, 120.0), 0.03, 0.05, variants=1),
    "dust": NucleusKind((3.0, 12.0), (1.0, 4.0), (10.0, 75.0), 0.3, 0.3, variants=2),
}
"""The kinds, of which red cells take up eosin and dust is grey."""


@dataclass(frozen=True, slots=True, eq=False)
class Album:
    """Pictures of one kind of nucleus at one resolution.

    Args:
        pictures: Square pictures of odd side, by direction and then by variant.
        variants: Pictures a direction.
    """

    pictures: tuple[UInt8[np.ndarray, "s s"], ...]
    variants: int


@lru_cache(maxsize=32)
def album(name: str, mpp: float) -> Album:
    """Draw the pictures of a kind of nucleus."""
    kind = KINDS[name]
    rng = np.random.default_rng([sorted(KINDS).index(name), 7])
    turns = np.repeat(np.arange(DIRECTIONS) * np.pi / DIRECTIONS, kind.variants)
    return Album(tuple(_picture(rng, kind, turn, mpp) for turn in turns), kind.variants)


def largest_half(mpp: float) -> int:
    """Return half of the side of the largest pictures of a resolution, in pixels."""
    return max(_half(kind, mpp) for kind in KINDS.values())


def _half(kind: NucleusKind, mpp: float) -> int:
    return int(np.ceil(0.75 * kind.length[1] / mpp)) + 1


def _picture(
    rng: np.random.Generator, kind: NucleusKind, turn: float, mpp: float
) -> UInt8[np.ndarray, "s s"]:
    import cv2

    length, slimness = rng.uniform(*kind.length), rng.uniform(*kind.slimness)
    turn = turn + rng.uniform(-0.5, 0.5) * np.pi / DIRECTIONS
    darkness = rng.uniform(*kind.darkness)
    fine = mpp / _FINER
    half = _half(kind, mpp)
    side = (2 * half + 1) * _FINER
    angle = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    waves = sum(
        rng.normal() / k * np.cos(k * angle + rng.uniform(0, 2 * np.pi)) for k in range(2, 6)
    )
    radius = np.clip(1 + kind.irregularity * waves, 0.55, 1.45) / 2 / fine
    along, across = radius * length * np.cos(angle), radius * length / slimness * np.sin(angle)
    outline = np.column_stack(
        [
            along * np.cos(turn) - across * np.sin(turn),
            along * np.sin(turn) + across * np.cos(turn),
        ]
    )
    inside = np.zeros((side, side), np.uint8)
    corners = np.rint((outline + side / 2) * 16).astype(np.int32)
    cv2.fillPoly(inside, [corners], 1, shift=4)
    depth = cv2.distanceTransform(inside, cv2.DIST_L2, 5) * fine
    chromatin = cv2.GaussianBlur(
        rng.normal(size=(side, side)).astype(np.float32), (0, 0), 0.45 / fine
    )
    chromatin = chromatin / (chromatin.std() + 1e-6)
    value = np.full((side, side), darkness, np.float32)
    if rng.uniform() < kind.pale:
        value *= 0.62 + 0.5 * np.exp(-depth / 0.7)
    value *= 1 + kind.clumps * np.clip(chromatin, -2, 2)
    for _ in range(int(rng.integers(0, kind.nucleoli + 1))):
        place = (rng.uniform(-0.22, 0.22, size=2) * length / fine + side / 2).astype(int)
        size = rng.uniform(0.6, 1.2) / fine
        spot = np.zeros_like(inside)
        cv2.circle(spot, (int(place[0]), int(place[1])), max(1, int(size)), 1, -1)
        value = np.where(spot > 0, np.maximum(value, 1.15 * darkness), value)
    value *= np.clip(depth / 0.4, 0, 1)
    small = cv2.resize(value * inside, (2 * half + 1, 2 * half + 1), interpolation=cv2.INTER_AREA)
    return np.clip(np.rint(small), 0, 255).astype(np.uint8)


def lattice_places(
    seed: int, channel: int, spacing: float, window: tuple[float, float, float, float]
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"], Float[np.ndarray, "4 K"]]:
    """Scatter places with some distance between over the plane, and cut out a window.

    A shaken hexagonal lattice: the places in a window do not depend on the window.

    Returns:
        x and y of the places, and four numbers in [0, 1) of each.
    """
    left, top, right, bottom = window
    rise = spacing * np.sqrt(3) / 2
    columns = np.arange(int(np.floor(left / spacing)) - 2, int(np.ceil(right / spacing)) + 2)
    rows = np.arange(int(np.floor(top / rise)) - 2, int(np.ceil(bottom / rise)) + 2)
    i, j = np.tile(columns, len(rows)), np.repeat(rows, len(columns))
    chance = np.stack([draw(seed, 8 * channel + k, i, j) for k in range(6)])
    x = (i + 0.5 * (j % 2) + 0.62 * (chance[0] - 0.5)) * spacing
    y = j * rise + 0.62 * (chance[1] - 0.5) * spacing
    near = (x >= left) & (x < right) & (y >= top) & (y < bottom)
    return x[near], y[near], chance[2:, near]


def stamp(
    canvas: UInt8[np.ndarray, "h w"],
    edge: int,
    pictures: Album,
    column: Int[np.ndarray, " K"],
    row: Int[np.ndarray, " K"],
    direction: Int[np.ndarray, " K"],
    variant: Float[np.ndarray, " K"],
) -> None:
    """Lay nuclei on a canvas.

    Args:
        canvas: Concentration of haematoxylin in a window, with an edge all around it.
        edge: Width of the edge; at least half of a picture's side, so that none sticks out.
        pictures: The kind of nucleus.
        column: Columns of the centres, within the window.
        row: Rows of the centres, within the window.
        direction: Direction of each, below `DIRECTIONS`.
        variant: Number in [0, 1) that picks a variant.
    """
    side = pictures.pictures[0].shape[0]
    offset = edge - side // 2
    which = direction * pictures.variants + (variant * pictures.variants).astype(np.int64)
    left, top = (column + offset).tolist(), (row + offset).tolist()
    for x, y, k in zip(left, top, which.tolist(), strict=True):
        place = canvas[y : y + side, x : x + side]
        np.maximum(place, pictures.pictures[k], out=place)
