"""Annotations of slides, from a file or a folder with a file for each slide.

::

    <slide>.xml                          ASAP
    <slide>.geojson, <slide>.json        QuPath
    <slide>_mask.tif, <slide>_mask.tiff  a mask

If a slide has several files, the first in this order is read.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sgpmil.errors import AnnotationError, SettingsError
from sgpmil.options import Options
from sgpmil.slides.annotations.mask import AnnotationMask, read_mask
from sgpmil.slides.annotations.region_files import read_asap_xml, read_geojson, regular_file
from sgpmil.slides.annotations.regions import (
    CAMELYON,
    Annotations,
    RegionRule,
    bracs_rule,
    select_regions,
)

_KINDS = {".xml": "xml", ".geojson": "json", ".json": "json", ".tif": "tiff", ".tiff": "tiff"}
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_annotations(
    path: str | os.PathLike[str],
    rule: RegionRule | None = None,
    *,
    mask_downsample: float | None = None,
    slide_size: tuple[int, int] | None = None,
) -> Annotations | AnnotationMask:
    """Read the annotations of a slide: ASAP's XML, GeoJSON, or a mask as TIFF.

    The format follows from the file's suffix, or from its first bytes if the suffix is unknown.

    Args:
        path: File to read.
        rule: Rule for which regions are positive. By default the groups of CAMELYON for XML; for
            GeoJSON all regions, which must then have one class. Masks need none.
        mask_downsample: See `read_mask`.
        slide_size: Width and height of the slide in level-0 pixels, for masks.

    Raises:
        AnnotationError: The file is missing, damaged, or of another format, or the names of its
            regions are not those of the rule.
    """
    file = regular_file(path)
    kind = _KINDS.get(file.suffix.lower()) or _kind_by_content(file)
    where = f"'{file}'"
    if kind == "tiff":
        return read_mask(file, downsample=mask_downsample, slide_size=slide_size)
    if kind == "xml":
        return select_regions(read_asap_xml(file), rule or CAMELYON, where)
    return select_regions(read_geojson(file), rule or RegionRule(), where)


def _kind_by_content(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            start = stream.read(64).removeprefix(_BYTE_ORDER_MARK).lstrip()
    except OSError as error:
        raise AnnotationError(
            f"Expected annotations in '{file}', but it cannot be read ({error}). Check the path."
        ) from error
    if start.startswith(_TIFF_STARTS):
        return "tiff"
    if start.startswith(b"<"):
        return "xml"
    if start.startswith((b"{", b"[")):
        return "json"
    raise AnnotationError(
        f"Expected annotations as ASAP XML, GeoJSON or TIFF in '{file}', but got another format. "
        "Export them as one of these."
    )


ClassRule = Callable[[str], RegionRule]
"""A rule for each class of slide, by the name of the class (see `bracs_rule`)."""

_ENDINGS = (".xml", ".geojson", ".json", "_mask.tif", "_mask.tiff")


@dataclass(frozen=True, slots=True)
class AnnotationFolder:
    """A folder of annotations.

    Args:
        folder: The folder.
        files: The file of each slide.
        rule: Rule for which regions are positive, or a function that says so for a class of slide.
        mask_downsample: Side of a mask's pixel in level-0 pixels (see `read_mask`).
    """

    folder: Path
    files: dict[str, Path]
    rule: RegionRule | ClassRule | None = None
    mask_downsample: float | None = None

    def __contains__(self, slide_id: str) -> bool:
        return slide_id in self.files

    @property
    def depends_on_class(self) -> bool:
        """Return whether the rule depends on the class of the slide."""
        return callable(self.rule)

    def read(self, slide_id: str, slide_class: str) -> Annotations | AnnotationMask:
        """Read the annotations of a slide.

        Raises:
            AnnotationError: There is no file for it, or it cannot be read.
        """
        if slide_id not in self.files:
            raise AnnotationError(
                f"Expected annotations of '{slide_id}' in '{self.folder}', but there are none. "
                f"Name the file '{slide_id}.xml', '.geojson' or '_mask.tif'."
            )
        rule = self.rule(slide_class) if callable(self.rule) else self.rule
        return read_annotations(self.files[slide_id], rule, mask_downsample=self.mask_downsample)


def open_annotations(
    folder: str | os.PathLike[str],
    rule: RegionRule | ClassRule | None = None,
    *,
    mask_downsample: float | None = None,
) -> AnnotationFolder:
    """Find the annotations in a folder; none is read yet.

    Args:
        folder: The folder.
        rule: Rule for which regions are positive; see `read_annotations` for the default.
        mask_downsample: Side of a mask's pixel in level-0 pixels (see `read_mask`).

    Raises:
        AnnotationError: There is no such folder, or it has no annotations.
    """
    place = Path(folder)
    if not place.is_dir():
        raise AnnotationError(
            f"Expected a folder of annotations at '{place}', but there is none. Check the path."
        )
    files: dict[str, Path] = {}
    for ending in _ENDINGS:
        for file in sorted(place.iterdir()):
            if file.name.lower().endswith(ending) and file.is_file():
                files.setdefault(file.name[: -len(ending)], file)
    if not files:
        raise AnnotationError(
            f"Expected files <slide>.xml, <slide>.geojson or <slide>_mask.tif in '{place}', but "
            "there are none. Name them after the slides."
        )
    return AnnotationFolder(place, files, rule, mask_downsample)


@dataclass(frozen=True, kw_only=True)
class AnnotationOptions(Options):
    """Annotations that label the patches of slides.

    Args:
        annotations: Folder of <slide>.xml (ASAP), <slide>.geojson (QuPath) or <slide>_mask.tif that
            label the patches.
        regions: Names of the positive regions of the annotations, comma-separated; camelyon and
            bracs name the rules of these data sets.
        min_coverage: Least share of a patch inside the regions; 0 for any overlap.
        mask_downsample: Side of a mask's pixel in level-0 pixels, where the file does not state it.
    """

    annotations: Path | None = None
    regions: tuple[str, ...] | None = None
    min_coverage: float = 0.5
    mask_downsample: float | None = None

    def open_annotations(self) -> AnnotationFolder | None:
        """Open the annotations; None where the options name none.

        Raises:
            SettingsError: Options about annotations come without any.
            AnnotationError: There is no such folder, or it has no annotations.
        """
        if self.annotations is None:
            if self.regions is not None or self.mask_downsample is not None:
                raise SettingsError(
                    "`regions` and `mask_downsample` are about `annotations`. Add a folder of them."
                )
            return None
        rule: RegionRule | ClassRule | None = None
        if self.regions is not None:
            names = self.regions
            known: dict[tuple[str, ...], RegionRule | ClassRule] = {
                ("camelyon",): CAMELYON,
                ("bracs",): bracs_rule,
            }
            # Regions that CAMELYON excludes stay holes, unless they are named as positive.
            holes = tuple(hole for hole in CAMELYON.excluded if hole not in names)
            own = RegionRule(positive=names, excluded=holes)
            rule = known.get(tuple(name.casefold() for name in names), own)
        return open_annotations(self.annotations, rule, mask_downsample=self.mask_downsample)
