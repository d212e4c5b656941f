"""From a slide file to the places of its patches: tissue, contours, preview, coordinates.

Each step takes what is on disk when it is there: contours that were edited elsewhere, or
coordinates that another tool wrote. Coordinates remember the contours they came from, so that
edited contours lead to new coordinates.
"""

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from sgpmil.slides.annotations import SkippedRegionWarning
from sgpmil.slides.extraction.settings import ExtractionSettings
from sgpmil.slides.extraction.slide_job import SlideJob
from sgpmil.slides.patches import (
    ExtractionFolder,
    Patches,
    place_patches,
    read_coords,
    write_coords,
)
from sgpmil.slides.reading import Resolution, Slide, SlideWarning, open_slide
from sgpmil.slides.tissue import (
    Tissue,
    read_contours,
    segment_tissue,
    write_contours,
    write_preview,
)

__all__ = ["PreparedSlide", "Record", "prepare_slide", "stored_record"]

Record = dict[str, Any]
"""What the attributes of a file remember of how it came about, by name."""

_CONTOURS, _MIN_TISSUE = "contours_sha256", "min_tissue"
_RECORDED = (_CONTOURS, _MIN_TISSUE, "mpp", "magnification_source")


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSlide:
    """A slide whose patches are placed.

    Args:
        patches: Where its patches are.
        record: What the attributes of its files remember; empty where another tool placed the
            patches.
        notes: What the user should know of it.
    """

    patches: Patches
    record: Record
    notes: tuple[str, ...] = ()


def prepare_slide(
    job: SlideJob, folder: ExtractionFolder, settings: ExtractionSettings
) -> PreparedSlide:
    """Find the tissue of a slide and place patches on it, unless that was done before.

    Writes the contours, a preview and the coordinates.

    Args:
        job: The slide.
        folder: Where its files go.
        settings: Patches and tissue.

    Raises:
        SlideError: The slide cannot be read, or does not say its magnification.
        AnnotationError: The contours that are there cannot be read.
    """
    coords = folder.coords(job.slide_id)
    if not settings.resegment:
        kept = _kept_coords(coords, folder.contours(job.slide_id), settings)
        if kept is not None:
            return kept
    with warnings.catch_warnings(record=True) as caught, open_slide(job.path) as slide:
        warnings.simplefilter("always")
        resolution = job.resolution(slide)
        tissue = _tissue(slide, resolution, folder.contours(job.slide_id), settings)
        patches = place_patches(tissue, slide, resolution, settings.patches)
        write_preview(
            folder.preview(job.slide_id),
            slide,
            tissue,
            coords=patches.coords,
            side=patches.side,
            mpp=resolution.mpp,
        )
    record = {
        **record_of(folder.contours(job.slide_id), settings),
        "mpp": resolution.mpp,
        "magnification_source": resolution.source,
    }
    write_coords(coords, patches, attributes=record)
    ours = (SlideWarning, SkippedRegionWarning)
    notes = tuple(str(warning.message) for warning in caught if issubclass(warning.category, ours))
    return PreparedSlide(patches, record, notes)


def stored_record(path: Path, dataset: str = "coords") -> Record:
    """Read the attributes of a dataset of an HDF5 file; empty where there are none."""
    with h5py.File(path, "r", locking=False) as file:
        return dict(file[dataset].attrs) if dataset in file else {}


def record_of(contours: Path, settings: ExtractionSettings) -> Record:
    """Give what coordinates must remember to be taken again."""
    return {_CONTOURS: _sha256(contours), _MIN_TISSUE: float(settings.patches.min_tissue)}


def outdated(stored: Record, contours: Path, settings: ExtractionSettings) -> str:
    """Say why files with this record must be made again; empty where they need not be.

    Files of other tools remember nothing of ours and are taken as they are.
    """
    if _CONTOURS in stored and contours.exists() and stored[_CONTOURS] != _sha256(contours):
        return "its contours were edited"
    if _MIN_TISSUE in stored and stored[_MIN_TISSUE] != settings.patches.min_tissue:
        return f"its patches were kept from {stored[_MIN_TISSUE]:g} tissue on"
    return ""


def _kept_coords(
    coords: Path, contours: Path, settings: ExtractionSettings
) -> PreparedSlide | None:
    if not coords.exists():
        return None
    stored = stored_record(coords)
    if outdated(stored, contours, settings):
        return None
    ours = {name: stored[name] for name in _RECORDED if name in stored}
    return PreparedSlide(read_coords(coords), ours)


def _tissue(
    slide: Slide, resolution: Resolution, contours: Path, settings: ExtractionSettings
) -> Tissue:
    if contours.exists() and not settings.resegment:
        return read_contours(contours)
    tissue = segment_tissue(slide, resolution, settings.tissue)
    write_contours(contours, tissue)
    return tissue


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
