"""The annotations of many slides: a folder with a file a slide.

::

    <slide>.xml                          ASAP
    <slide>.geojson, <slide>.json        QuPath
    <slide>_mask.tif, <slide>_mask.tiff  a mask

Where a slide has several, the first in this order is read.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.files import read_annotations
from sgpmil.slides.annotations.mask import AnnotationMask
from sgpmil.slides.annotations.regions import Annotations, RegionRule

__all__ = ["AnnotationFolder", "ClassRule", "open_annotations"]

ClassRule = Callable[[str], RegionRule]
"""A rule for each class of slide, by the name of the class (see `bracs_rule`)."""

_ENDINGS = (".xml", ".geojson", ".json", "_mask.tif", "_mask.tiff")


@dataclass(frozen=True, slots=True)
class AnnotationFolder:
    """A folder of annotations.

    Args:
        folder: The folder.
        files: The file of each slide.
        rule: Which regions are positive, or a function that says so for a class of slide.
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
        """Whether what is positive depends on the class of the slide."""
        return callable(self.rule)

    def read(self, slide_id: str, slide_class: str) -> Annotations | AnnotationMask:
        """Read the annotations of a slide.

        Args:
            slide_id: Name of the slide.
            slide_class: Name of its class.

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
        rule: Which regions are positive; see `read_annotations` for the default.
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
