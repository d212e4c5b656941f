"""A synthetic slide as a drawing: what lies where, in microns."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sgpmil.phantoms.anatomy import (
    Ring,
    draw_adipocytes,
    draw_aggregates,
    draw_fat,
    draw_folds,
    draw_glands,
    draw_vessels,
)
from sgpmil.phantoms.outlines import solid
from sgpmil.phantoms.pen import PenMark, draw_pen
from sgpmil.phantoms.settings import PhantomSettings
from sgpmil.phantoms.stain import Stain, draw_stain
from sgpmil.phantoms.tissue_outline import draw_tissue
from sgpmil.phantoms.tumour import draw_tumour
from sgpmil.slides.optional_part import require_package

if TYPE_CHECKING:
    from shapely import Geometry
else:
    Geometry = Any  # shapely is of an optional part, and is loaded when it is first needed

__all__ = ["Scene", "make_scene"]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A synthetic slide as a drawing. Areas are shapely geometries in microns.

    Args:
        seed: Seed of everything in it.
        settings: What it is like.
        tissue: The tissue, without its tears. Hollows of glands and fat belong to it.
        tumour: The tumour; empty on a normal slide. No other structure lies in it.
        glands: Normal glands.
        vessels: Blood vessels.
        lymphocytes: Aggregates of lymphocytes.
        fat: Regions of fat.
        adipocytes: The cells of the fat.
        folds: Where the tissue lies double.
        pen: What someone drew on the glass.
        stain: How it was stained and scanned.
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
        """Whether there is a tumour."""
        return not self.tumour.is_empty

    @property
    def tumour_share(self) -> float:
        """Share of the tissue's area that is tumour."""
        return float(self.tumour.area / self.tissue.area)

    def in_pixels(self, area: Geometry) -> Geometry:
        """Convert an area from microns to level-0 pixels, to a hundredth of a pixel.

        What is drawn and what is written as the truth both pass through here, so that they agree
        to the last digit.

        Args:
            area: A geometry in microns.
        """
        import shapely

        rounded = shapely.transform(area, lambda points: np.round(points / self.settings.mpp, 2))
        # Rounding can make a very thin part cross itself.
        return rounded if shapely.is_valid(rounded) else solid(rounded)


def make_scene(seed: int, settings: PhantomSettings | None = None) -> Scene:
    """Draw a synthetic slide.

    The same seed and settings give the same scene. A normal slide (`tumour_share=0`) has the same
    tissue as one with a tumour; where the tumour would be it has what lies elsewhere.

    Args:
        seed: Seed, not negative.
        settings: What the slide is to be like.
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
