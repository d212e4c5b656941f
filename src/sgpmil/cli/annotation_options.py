"""Options about what experts drew on the slides, which several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sgpmil.errors import SettingsError

if TYPE_CHECKING:
    from sgpmil.slides.annotations.folder import AnnotationFolder

__all__ = ["AnnotationsPath", "MaskDownsample", "MinCoverage", "Regions", "annotation_folder"]

AnnotationsPath = Annotated[
    Path | None,
    typer.Option(
        "--annotations",
        help="Folder of <slide>.xml (ASAP), <slide>.geojson (QuPath) or <slide>_mask.tif that "
        "label the patches.",
    ),
]
Regions = Annotated[
    str | None,
    typer.Option(
        "--regions",
        help="Names of the positive regions of the annotations, comma-separated; camelyon and "
        "bracs name the rules of these sets.",
    ),
]
MinCoverage = Annotated[
    float,
    typer.Option(
        "--min-coverage", help="Least share of a patch in the regions; 0 for any overlap."
    ),
]
MaskDownsample = Annotated[
    float | None,
    typer.Option(
        "--mask-downsample",
        help="Side of a mask's pixel in level-0 pixels, where the file does not say.",
    ),
]


def annotation_folder(
    folder: Path | None, regions: str | None, mask_downsample: float | None
) -> "AnnotationFolder | None":
    """Open the annotations that the options name; None where they name none.

    Args:
        folder: Folder of the annotations.
        regions: Names of the positive regions, comma-separated, or of a known rule.
        mask_downsample: Side of a mask's pixel in level-0 pixels.

    Raises:
        SettingsError: Options about annotations come without any.
        AnnotationError: There is no such folder, or it has no annotations.
    """
    if folder is None:
        if regions is not None or mask_downsample is not None:
            raise SettingsError(
                "--regions and --mask-downsample are about --annotations. Add a folder of them."
            )
        return None
    from sgpmil.slides.annotations.folder import ClassRule, open_annotations
    from sgpmil.slides.annotations.regions import CAMELYON, RegionRule, bracs_rule

    rule: RegionRule | ClassRule | None = None
    if regions is not None:
        names = tuple(name.strip() for name in regions.split(",") if name.strip())
        known: dict[tuple[str, ...], RegionRule | ClassRule] = {
            ("camelyon",): CAMELYON,
            ("bracs",): bracs_rule,
        }
        # What CAMELYON excludes stays a hole, unless it is named as positive.
        holes = tuple(hole for hole in CAMELYON.excluded if hole not in names)
        own = RegionRule(positive=names, excluded=holes)
        rule = known.get(tuple(name.casefold() for name in names), own)
    return open_annotations(folder, rule, mask_downsample=mask_downsample)
