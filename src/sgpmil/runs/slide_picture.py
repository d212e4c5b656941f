"""The slides of a run: their images, annotations and nuclei."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sgpmil.bags.tables import listed
from sgpmil.errors import ExplanationError, SlideError
from sgpmil.notebook import counted
from sgpmil.shapes import Float, UInt8
from sgpmil.slides.annotations import AnnotationMask, Annotations
from sgpmil.slides.annotations.folder import AnnotationFolder
from sgpmil.slides.annotations.mask import mask_polygons
from sgpmil.slides.reading import Slide, find_slides, open_slide, slide_resolution


class MissingMaterialWarning(UserWarning):
    """Slides or nuclei that an explanation could show are missing."""


@dataclass(frozen=True, slots=True, eq=False)
class SlidePicture:
    """A slide as an image, with the outlines of its annotated regions.

    Args:
        pixels: The slide at low resolution; None where there is no slide.
        size: Width and height of the slide in level-0 pixels; None where unknown.
        outlines: Annotated regions: corners (x, y) in level-0 pixels.
        outlined: Name of these regions.
        mpp: Microns per level-0 pixel; None where unknown.
    """

    pixels: UInt8[np.ndarray, "h w 3"] | None = None
    size: tuple[int, int] | None = None
    outlines: tuple[Float[np.ndarray, "_ 2"], ...] = ()
    outlined: str = "annotated"
    mpp: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SlideSources:
    """The files of a run's slides, their annotations and their nuclei.

    Args:
        files: File of each slide.
        annotations: Annotations of the slides.
        nuclei: File of each slide's nuclei, as HoVer-Net or CellViT write them.
        mpp: Microns per level-0 pixel, for slides whose files do not say.
        others: Files of other slides in the same folder, such as those that models learned from.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    annotations: AnnotationFolder | None = None
    nuclei: Mapping[str, Path] = field(default_factory=dict)
    mpp: float | None = None
    others: Mapping[str, Path] = field(default_factory=dict)

    def open(self, slide_id: str) -> Slide | None:
        """Open a slide's file; None where there is none.

        Raises:
            SlideError: It cannot be read.
        """
        file = self.files.get(slide_id) or self.others.get(slide_id)
        return None if file is None else open_slide(file)

    def picture(
        self, slide_id: str, slide_class: str | None = None, *, longest: int = 1600
    ) -> SlidePicture:
        """Read a slide as an image with its annotated regions, as far as there are files.

        Args:
            slide_id: Name of the slide.
            slide_class: Name of its class, on which the annotations' rule may depend.
            longest: Longer side of the image in pixels.

        Raises:
            SlideError: The slide cannot be read.
            AnnotationError: The annotations cannot be read.
        """
        picture = SlidePicture(mpp=self.mpp)
        slide = self.open(slide_id)
        if slide is not None:
            with slide:
                picture = SlidePicture(
                    slide.thumbnail(longest), slide.size, mpp=slide_mpp(slide) or self.mpp
                )
        if self.annotations is None or slide_id not in self.annotations:
            return picture
        rings, name = outlines_of(self.annotations.read(slide_id, slide_class or ""))
        return replace(picture, outlines=rings, outlined=name)


def outlines_of(
    drawn: Annotations | AnnotationMask,
) -> tuple[tuple[Float[np.ndarray, "_ 2"], ...], str]:
    """Return the rings of the positive regions, holes included, and the name of the regions."""
    regions = mask_polygons(drawn) if isinstance(drawn, AnnotationMask) else drawn
    rings: list[np.ndarray] = []
    for region in regions.positive:
        for part in getattr(region.polygon, "geoms", [region.polygon]):
            rings += [np.array(ring.coords)[:, :2] for ring in (part.exterior, *part.interiors)]
    name = regions.positive[0].name.lower() if regions.positive else ""
    return tuple(rings), name if name and name != "mask" else "annotated"


def find_slide_files(folder: Path, wanted: set[str]) -> dict[str, Path]:
    """Find the files of all slides in a folder; missing ones are a warning, none an error."""
    try:
        files = {file.stem: file for file in find_slides(folder)}
    except SlideError:
        files = {}
    # Folders below may hold thumbnails of the same names: they are searched only where needed.
    if not wanted & set(files):
        files = {file.stem: file for file in find_slides(folder, recursive=True)}
    if not wanted & set(files):
        raise SlideError(
            f"Expected files of slides such as '{min(wanted)}' in {folder}, but got only such as "
            f"'{min(files)}'. Name the folder of the run's slides."
        )
    _warn_missing(wanted - set(files), "slides", folder)
    return files


def find_nuclei_files(folder: Path, wanted: set[str]) -> dict[str, Path]:
    """Find the nuclei of slides in a folder; missing ones are a warning, none is an error."""
    known = {
        slide_id: file
        for slide_id in sorted(wanted)
        for file in (folder / f"{slide_id}.json", folder / f"{slide_id}.geojson")
        if Path(slide_id).name == slide_id and file.exists()
    }
    if not known:
        raise ExplanationError(
            f"Expected files <slide>.json of the run's nuclei in {folder}, but found none. "
            "Name them after the slides."
        )
    _warn_missing(wanted - set(known), "nuclei", folder)
    return known


def _warn_missing(slides: set[str], what: str, folder: Path) -> None:
    if slides:
        warnings.warn(
            f"No {what} found in {folder} for {counted(len(slides), 'slide')}, shown without: "
            f"{listed(sorted(slides))}.",
            MissingMaterialWarning,
            stacklevel=4,
        )


def slide_mpp(slide: Slide) -> float | None:
    """Return the microns per level-0 pixel of a slide; None where its file does not say."""
    try:
        return slide_resolution(slide).mpp
    except SlideError:
        return None
