"""What experts drew on a slide: named regions, and the rule of which are positive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sgpmil.errors import AnnotationError
from sgpmil.slides.optional_part import require_package

if TYPE_CHECKING:
    from shapely import Geometry
else:
    Geometry = Any  # shapely is of an optional part, and is loaded when it is first needed

__all__ = [
    "CAMELYON",
    "Annotations",
    "Region",
    "RegionRule",
    "SkippedRegionWarning",
    "Unannotated",
    "select_regions",
]

Unannotated = Literal["negative", "unknown"]
"""What tissue outside every region is: `negative` where the drawing is exhaustive."""


class SkippedRegionWarning(UserWarning):
    """Drawn objects without an area were left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """An area that someone drew on a slide.

    Args:
        polygon: The area (a shapely Polygon or MultiPolygon) in level-0 pixels.
        name: Class or group it was given; empty where it has none.
    """

    polygon: Geometry
    name: str = ""


@dataclass(frozen=True, slots=True)
class RegionRule:
    """Which regions are positive. Names are compared without regard to case.

    Args:
        positive: Names of the positive regions. With none, every region that is not excluded is
            positive, provided that they all have the same name.
        excluded: Names of regions that are cut out of the others as holes.
        negative: Names of negative regions; any other name is then refused. By default whatever
            is neither positive nor excluded is negative.
        unannotated: What tissue outside every region is.
    """

    positive: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    negative: tuple[str, ...] | None = None
    unannotated: Unannotated = "negative"


CAMELYON = RegionRule(
    positive=("Tumor", "_0", "_1", "Metastases", "None"),
    excluded=("_2", "Exclusion", "Normal"),
    negative=(),
)
"""The groups of CAMELYON16 and 17; other groups are refused, for they may hide a tumour."""


@dataclass(frozen=True, slots=True, eq=False)
class Annotations:
    """The regions of one slide under a rule.

    Args:
        positive: Positive regions, with what is excluded cut out of them.
        negative: Regions that were drawn and are not positive.
        unannotated: What tissue outside every region is.
    """

    positive: tuple[Region, ...]
    negative: tuple[Region, ...] = ()
    unannotated: Unannotated = "negative"

    @property
    def is_positive(self) -> bool:
        """Whether any area is positive."""
        return bool(self.positive)

    def positive_area(self) -> Geometry:
        """Unite the positive regions: where they overlap, the area counts once."""
        return _united(self.positive)

    def negative_area(self) -> Geometry:
        """Unite the negative regions."""
        return _united(self.negative)


def select_regions(regions: Sequence[Region], rule: RegionRule, where: str) -> Annotations:
    """Sort regions into positive and negative ones, and cut the excluded ones out of both.

    Args:
        regions: Regions of one slide.
        rule: Which are positive.
        where: What holds them, for the message.

    Raises:
        AnnotationError: A name is not among those of the rule, or the rule names none and the
            regions have several.

    Example:
        >>> from shapely import box
        >>> drawn = [Region(box(0, 0, 4, 4), "Tumor"), Region(box(1, 1, 2, 2), "Exclusion")]
        >>> select_regions(drawn, CAMELYON, "an example").positive_area().area
        15.0
    """
    require_package("shapely")
    import shapely

    excluded, kept = _split(regions, rule.excluded)
    positive, negative = _split(kept, rule.positive or _only_name(kept, where))
    if rule.negative is not None:
        _, unknown = _split(negative, rule.negative)
        if unknown:
            raise AnnotationError(
                f"Expected regions named {_listed(_all_names(rule))} in {where}, but got "
                f"'{unknown[0].name}'. Name those that are positive (--regions)."
            )
    hole = _united(excluded)

    def cut(region: Region) -> Region:
        return Region(shapely.difference(region.polygon, hole), region.name)

    def with_area(drawn: Sequence[Region]) -> tuple[Region, ...]:
        return tuple(region for region in map(cut, drawn) if region.polygon.area > 0)

    return Annotations(with_area(positive), with_area(negative), rule.unannotated)


def _united(regions: Sequence[Region]) -> Geometry:
    require_package("shapely")
    import shapely

    return shapely.union_all([region.polygon for region in regions])


def _split(regions: Sequence[Region], names: Sequence[str]) -> tuple[list[Region], list[Region]]:
    """Part the regions of these names from the others."""
    wanted = {_key(name) for name in names}
    named = [region for region in regions if _key(region.name) in wanted]
    return named, [region for region in regions if _key(region.name) not in wanted]


def _key(name: str) -> str:
    return name.strip().casefold()


def _only_name(regions: Sequence[Region], where: str) -> tuple[str, ...]:
    names = {_key(region.name): region.name for region in regions}
    if len(names) > 1:
        raise AnnotationError(
            f"Expected regions of one class in {where}, but got {_listed(list(names.values()))}. "
            "Name those that are positive (--regions)."
        )
    return tuple(names.values())


def _all_names(rule: RegionRule) -> list[str]:
    return [*rule.positive, *rule.excluded, *(rule.negative or ())]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
