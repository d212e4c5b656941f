"""Regions that experts drew on a slide, and rules for which are positive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sgpmil.errors import AnnotationError
from sgpmil.slides.optional_part import Geometry, require_package

Unannotated = Literal["negative", "unknown"]
"""Label of tissue outside every region: `negative` if the annotation is exhaustive."""


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
    """Rule for which regions are positive. The case of names does not matter.

    Args:
        positive: Names of the positive regions. With none, every region that is not excluded is
            positive, provided that they all have the same name.
        excluded: Names of regions that are cut out of the others as holes.
        negative: Names of negative regions; any other name is then refused. By default whatever
            is neither positive nor excluded is negative.
        unannotated: Label of tissue outside every region.
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
        unannotated: Label of tissue outside every region.
    """

    positive: tuple[Region, ...]
    negative: tuple[Region, ...] = ()
    unannotated: Unannotated = "negative"

    @property
    def is_positive(self) -> bool:
        """Return whether any area is positive."""
        return bool(self.positive)

    def positive_area(self) -> Geometry:
        """Unite the positive regions: where they overlap, the area counts once."""
        return _united(self.positive)

    def negative_area(self) -> Geometry:
        """Unite the negative regions."""
        return _united(self.negative)


def select_regions(regions: Sequence[Region], rule: RegionRule, where: str) -> Annotations:
    """Sort regions into positive and negative ones, and cut the excluded ones out of both.

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
                f"'{unknown[0].name}'. Name those that are positive (`regions`)."
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

    if len(regions) == 1:  # a mask of many parts, which do not overlap
        return regions[0].polygon
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
            "Name those that are positive (`regions`)."
        )
    return tuple(names.values())


def _all_names(rule: RegionRule) -> list[str]:
    return [*rule.positive, *rule.excluded, *(rule.negative or ())]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


_SUBTYPES = {
    "BT": ("N", "Normal", "PB", "Pathological Benign", "UDH", "Usual Ductal Hyperplasia"),
    "AT": ("FEA", "Flat Epithelial Atypia", "ADH", "Atypical Ductal Hyperplasia"),
    "MT": ("DCIS", "Ductal Carcinoma In Situ", "IC", "Invasive Carcinoma"),
}
"""Subtypes of each coarse class: benign, atypical and malignant tumours."""

_COARSE = {
    "bt": "BT",
    "benign": "BT",
    "group_bt": "BT",
    "at": "AT",
    "atypical": "AT",
    "group_at": "AT",
    "mt": "MT",
    "malignant": "MT",
    "group_mt": "MT",
}


def bracs_rule(slide_class: str, unannotated: Unannotated = "unknown") -> RegionRule:
    """Return the rule for a slide of a coarse class of BRACS.

    BRACS annotates regions of seven subtypes, and not all of the tissue. A region is positive if
    its subtype belongs to the coarse class of its slide, and negative otherwise. Tissue outside
    every region is unknown, because a slide of a malignant tumour has more of it than was drawn.

    Args:
        slide_class: ``BT``, ``AT`` or ``MT`` (or benign, atypical, malignant).
        unannotated: Label of tissue outside every region.

    Raises:
        AnnotationError: There is no such class.

    Example:
        >>> bracs_rule("AT").positive
        ('FEA', 'Flat Epithelial Atypia', 'ADH', 'Atypical Ductal Hyperplasia')
    """
    coarse = _COARSE.get(slide_class.strip().casefold())
    if coarse is None:
        raise AnnotationError(
            f"Expected a slide of BRACS of class BT, AT or MT, but got '{slide_class}'. "
            "Name the classes of the predictions so."
        )
    others = [name for key, names in _SUBTYPES.items() if key != coarse for name in names]
    return RegionRule(positive=_SUBTYPES[coarse], negative=tuple(others), unannotated=unannotated)
