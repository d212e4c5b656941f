"""What the synthetic slides are to be like."""

from dataclasses import dataclass

from sgpmil.errors import SettingsError

__all__ = ["PhantomSettings"]

_SMALLEST, _LARGEST = 512, 400_000
_FINEST, _COARSEST = 0.1, 2.0
_LARGEST_SHARE = 0.9
_SHORTEST_UM = 400.0


@dataclass(frozen=True, slots=True)
class PhantomSettings:
    """What a synthetic slide is to be like.

    Cells, glands and fibres have their natural size in microns: a finer `mpp` shows the same
    things larger, and a larger `size` shows more of them.

    Args:
        size: Width and height in level-0 pixels.
        mpp: Microns per level-0 pixel: 0.25 for 40×, 0.5 for 20×.
        tumour_share: Share of the tissue's area that is tumour; 0 for a normal slide.
        pen_share: Probability that someone drew on the slide with a pen.
        fold_share: Probability that the tissue is folded somewhere.
        quality: JPEG quality of the file.

    Raises:
        SettingsError: A value is out of range.

    Example:
        >>> PhantomSettings(size=(8000, 6000), mpp=0.25).extent
        (2000.0, 1500.0)
    """

    size: tuple[int, int] = (6144, 4608)
    mpp: float = 0.5
    tumour_share: float = 0.05
    pen_share: float = 0.3
    fold_share: float = 0.5
    quality: int = 90

    def __post_init__(self) -> None:
        width, height = self.size
        _check(
            f"a slide of {_SMALLEST} to {_LARGEST:,} pixels a side",
            f"{width}×{height}",
            min(width, height) >= _SMALLEST and max(width, height) <= _LARGEST,
        )
        _check(
            f"{_FINEST} to {_COARSEST:g} microns a pixel",
            f"{self.mpp:g}",
            _FINEST <= self.mpp <= _COARSEST,
        )
        _check(
            f"a slide of at least {_SHORTEST_UM:.0f} microns a side",
            f"{width * self.mpp:.0f}×{height * self.mpp:.0f}",
            min(self.extent) >= _SHORTEST_UM,
        )
        _check(
            f"a tumour share from 0 to {_LARGEST_SHARE}",
            f"{self.tumour_share:g}",
            0 <= self.tumour_share <= _LARGEST_SHARE,
        )
        for name, share in (("pen", self.pen_share), ("fold", self.fold_share)):
            _check(f"a share of slides with a {name} from 0 to 1", f"{share:g}", 0 <= share <= 1)
        _check("a JPEG quality from 1 to 100", str(self.quality), 1 <= self.quality <= 100)

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height in microns."""
        return self.size[0] * self.mpp, self.size[1] * self.mpp


def _check(expected: str, found: str, holds: bool) -> None:
    # A comparison with NaN is false, so that it is refused too.
    if not holds:
        raise SettingsError(f"Expected {expected}, but got {found}. Change the phantoms' settings.")
