"""Windows of a slide."""

from dataclasses import dataclass

__all__ = ["Window"]


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of level-0 pixels.

    Args:
        x: Left.
        y: Top.
        width: Width.
        height: Height.
    """

    x: int
    y: int
    width: int
    height: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.height, self.width

    def grown(self, margin: int) -> "Window":
        """Add a margin on every side.

        Example:
            >>> Window(0, 0, 4, 4).grown(1)
            Window(x=-1, y=-1, width=6, height=6)
        """
        return Window(
            self.x - margin, self.y - margin, self.width + 2 * margin, self.height + 2 * margin
        )

    def microns(self, mpp: float) -> tuple[float, float, float, float]:
        """Give left, top, right and bottom in microns."""
        return (
            self.x * mpp,
            self.y * mpp,
            (self.x + self.width) * mpp,
            (self.y + self.height) * mpp,
        )
