"""Scenes: synthetic slides as drawings, in microns."""

from dataclasses import dataclass

import numpy as np

from sgpmil.errors import SettingsError
from sgpmil.phantoms.anatomy import (
    Ring,
    draw_adipocytes,
    draw_aggregates,
    draw_fat,
    draw_folds,
    draw_glands,
    draw_tumour,
    draw_vessels,
)
from sgpmil.phantoms.outlines import draw_tissue, ribbon, solid
from sgpmil.phantoms.stain import Stain, draw_stain
from sgpmil.slides.optional_part import Geometry, require_package

_SMALLEST, _LARGEST = 512, 400_000
_FINEST, _COARSEST = 0.1, 2.0
_LARGEST_SHARE = 0.9
_SHORTEST_UM = 400.0


@dataclass(frozen=True, slots=True)
class PhantomSettings:
    """Settings of a synthetic slide.

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


_INKS = {
    "blue": (0.16, 0.26, 0.72),
    "green": (0.10, 0.55, 0.30),
    "black": (0.13, 0.13, 0.15),
    "red": (0.86, 0.10, 0.16),
}
"""Share of red, green and blue that a stroke lets through."""


@dataclass(frozen=True, slots=True, eq=False)
class PenMark:
    """A stroke of a pen.

    Args:
        outline: Its area in microns (a Polygon).
        ink: Name of its colour.
        passes: Share of red, green and blue that it lets through.
    """

    outline: Geometry
    ink: str
    passes: tuple[float, float, float]


def draw_pen(
    rng: np.random.Generator, tissue: Geometry, extent: tuple[float, float], share: float
) -> tuple[PenMark, ...]:
    """Draw strokes over the edge of the tissue and the glass beside it."""
    import shapely

    if rng.uniform() >= share:
        return ()
    ink = str(rng.choice(list(_INKS)))
    slide = shapely.box(0, 0, *extent)
    scale = min(extent)
    marks = []
    for _ in range(int(rng.integers(1, 3))):
        piece = max(shapely.get_parts(tissue), key=shapely.area)
        edge = piece.exterior
        place = rng.uniform()
        at, ahead = (
            shapely.get_coordinates(shapely.line_interpolate_point(edge, t % 1, normalized=True))[0]
            for t in (place, place + 0.02)
        )
        along = (ahead - at) / max(float(np.hypot(*(ahead - at))), 1e-9)
        length, width = scale * rng.uniform(0.15, 0.45), scale * rng.uniform(0.025, 0.05)
        away = np.array([along[1], -along[0]]) * width * rng.uniform(-0.3, 1.2)
        half = along * length / 2
        stroke = ribbon(rng, at + away - half, at + away + half, width, bend=0.12, roughness=0.1)
        seen = shapely.intersection(stroke, slide)
        if not seen.is_empty:
            marks.append(PenMark(seen, ink, _INKS[ink]))
    return tuple(marks)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A synthetic slide as a drawing. Areas are shapely geometries in microns.

    Args:
        seed: Seed of everything in it.
        settings: Its settings.
        tissue: The tissue, without its tears. Hollows of glands and fat belong to it.
        tumour: The tumour; empty on a normal slide. No other structure lies in it.
        glands: Normal glands.
        vessels: Blood vessels.
        lymphocytes: Aggregates of lymphocytes.
        fat: Regions of fat.
        adipocytes: The cells of the fat.
        folds: Areas of folded tissue.
        pen: Pen marks on the glass.
        stain: Its stain and scanner.
    """

    seed: int
    settings: PhantomSettings
    tissue: Geometry
    tumour: Geometry
    glands: tuple[Ring, ...]
    vessels: tuple[Ring, ...]
    lymphocytes: Geometry
    fat: Geometry
    adipocytes: tuple[Geometry, ...]
    folds: Geometry
    pen: tuple[PenMark, ...]
    stain: Stain

    @property
    def is_positive(self) -> bool:
        """Return whether there is a tumour."""
        return not self.tumour.is_empty

    @property
    def tumour_share(self) -> float:
        """Share of the tissue's area that is tumour."""
        return float(self.tumour.area / self.tissue.area)

    def in_pixels(self, area: Geometry) -> Geometry:
        """Convert an area from microns to level-0 pixels, to a hundredth of a pixel.

        What is drawn and what is written as the truth both pass through here, so that they agree
        to the last digit.
        """
        import shapely

        rounded = shapely.transform(area, lambda points: np.round(points / self.settings.mpp, 2))
        # Rounding can make a very thin part cross itself.
        return rounded if shapely.is_valid(rounded) else solid(rounded)


def make_scene(seed: int, settings: PhantomSettings | None = None) -> Scene:
    """Draw a synthetic slide.

    The same seed and settings give the same scene. A normal slide (`tumour_share=0`) has the same
    tissue as one with a tumour; where the tumour would be it has what lies elsewhere.
    """
    require_package("shapely")
    import shapely

    settings = settings or PhantomSettings()
    streams = iter(np.random.default_rng(np.random.SeedSequence(seed)).spawn(11))
    tissue = draw_tissue(next(streams), settings.extent)
    tumour = draw_tumour(next(streams), tissue, settings.tumour_share)
    fat = solid(shapely.difference(draw_fat(next(streams), tissue), shapely.buffer(tumour, 4)))
    adipocytes = draw_adipocytes(next(streams), fat)
    free = shapely.difference(tissue, shapely.union(shapely.buffer(tumour, 4), fat))
    aggregates = draw_aggregates(next(streams), tissue, free)
    room = shapely.difference(free, shapely.buffer(aggregates, 4))
    glands = draw_glands(next(streams), room)
    vessels = draw_vessels(next(streams), room, glands)
    return Scene(
        seed=seed,
        settings=settings,
        tissue=tissue,
        tumour=tumour,
        glands=glands,
        vessels=vessels,
        lymphocytes=aggregates,
        fat=fat,
        adipocytes=adipocytes,
        folds=draw_folds(next(streams), tissue, settings.fold_share),
        pen=draw_pen(next(streams), tissue, settings.extent, settings.pen_share),
        stain=draw_stain(next(streams)),
    )
