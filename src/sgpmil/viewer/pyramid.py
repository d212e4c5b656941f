"""Pyramids of tiles by the convention of Deep Zoom (DZI)."""

from dataclasses import dataclass
from math import ceil

TileBox = tuple[int, int, int, int]
"""Left, top, width and height in pixels of a level."""


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Levels and tiles of an image. Level 0 is one pixel; the last level is the image itself.

    A pixel of level l is a square of $2^{L-l}$ pixels of the image, with the last level L.

    Args:
        width: Width of the image in pixels.
        height: Height of the image in pixels.
        tile_size: Side of a tile, without its overlap.
        overlap: Pixels that a tile has in common with each neighbour, on either side.
    """

    width: int
    height: int
    tile_size: int = 256
    overlap: int = 0

    @property
    def last_level(self) -> int:
        """Number of the level that is the image itself.

        Example:
            >>> Pyramid(1025, 3).last_level
            11
        """
        return (max(self.width, self.height) - 1).bit_length()

    def downsample(self, level: int) -> int:
        """Return the side of a level's pixel in pixels of the image."""
        return 1 << (self.last_level - level)

    def level_size(self, level: int) -> tuple[int, int]:
        """Return the width and height of a level in its pixels."""
        side = self.downsample(level)
        return ceil(self.width / side), ceil(self.height / side)

    def box(self, level: int, column: int, row: int) -> TileBox | None:
        """Return the place of a tile, with its overlap; None where there is none.

        Example:
            >>> Pyramid(600, 300, 254, 1).box(10, 1, 0)
            (253, 0, 256, 255)
        """
        if not 0 <= level <= self.last_level or column < 0 or row < 0:
            return None
        width, height = self.level_size(level)
        left, top = column * self.tile_size, row * self.tile_size
        if left >= width or top >= height:
            return None
        x, y = max(0, left - self.overlap), max(0, top - self.overlap)
        right = min(width, left + self.tile_size + self.overlap)
        bottom = min(height, top + self.tile_size + self.overlap)
        return x, y, right - x, bottom - y

    def description(self, suffix: str) -> str:
        """Describe the pyramid as the XML of a .dzi file.

        Args:
            suffix: Format of the tiles: "jpg" or "png".
        """
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<Image xmlns="http://schemas.microsoft.com/deepzoom/2008" '
            f'Format="{suffix}" Overlap="{self.overlap}" TileSize="{self.tile_size}">'
            f'<Size Width="{self.width}" Height="{self.height}"/></Image>\n'
        )
