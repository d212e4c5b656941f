"""The annotations of a slide, from a file of any format."""

import os
from pathlib import Path

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.asap_xml import read_asap_xml
from sgpmil.slides.annotations.geojson import read_geojson
from sgpmil.slides.annotations.mask import AnnotationMask, read_mask
from sgpmil.slides.annotations.regions import (
    CAMELYON,
    Annotations,
    RegionRule,
    select_regions,
)

__all__ = ["read_annotations"]

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
    """Read what was drawn on a slide: ASAP's XML, GeoJSON, or a mask as TIFF.

    The format follows from the file's suffix, or from its first bytes where that is another.

    Args:
        path: File to read.
        rule: Which regions are positive. By default the groups of CAMELYON for XML; for GeoJSON
            all regions, which must then have one class. Masks need none.
        mask_downsample: See `read_mask`.
        slide_size: Width and height of the slide in level-0 pixels, for masks.

    Raises:
        AnnotationError: The file is missing, damaged, or of another format, or the names of its
            regions are not those of the rule.
    """
    file = Path(path)
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
