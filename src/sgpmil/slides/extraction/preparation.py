"""Preparation of a slide: tissue, contours, preview and coordinates.

Each step uses the file that is on disk: contours that were edited elsewhere, or coordinates that
another tool wrote. Coordinates record the contours they came from, so that edited contours lead to
new coordinates.
"""

import hashlib
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sgpmil.bags.readers.own_data import own_dataset
from sgpmil.errors import ExtractionError
from sgpmil.slides.annotations import SkippedRegionWarning
from sgpmil.slides.extraction.jobs import ExtractionSettings, SlideJob
from sgpmil.slides.patches import (
    ExtractionFolder,
    Patches,
    place_patches,
    read_coords,
    write_coords,
)
from sgpmil.slides.reading import SlideWarning, open_slide
from sgpmil.slides.tissue import read_contours, segment_tissue, write_contours, write_preview

Record = dict[str, Any]
"""Attributes of a file that record how it was made, by name."""

_CONTOURS, _MIN_TISSUE, _BYTES = "contours_sha256", "min_tissue", "slide_bytes"
_SOURCE, _GIVEN_MPP, _GIVEN_MAGNIFICATION = "magnification_source", "given_mpp", "given_mag"
_RECORDED = (
    *(_CONTOURS, _MIN_TISSUE, _BYTES),
    *("mpp", _SOURCE, _GIVEN_MPP, _GIVEN_MAGNIFICATION),
)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSlide:
    """A slide whose patches are placed.

    Args:
        patches: Positions of its patches.
        record: Attributes of its files; empty if another tool placed the patches.
        notes: Remarks for the user.
    """

    patches: Patches
    record: Record
    notes: tuple[str, ...] = ()


def prepare_slide(
    job: SlideJob, folder: ExtractionFolder, settings: ExtractionSettings
) -> PreparedSlide:
    """Segment the tissue of a slide and place patches on it, unless the files exist.

    Writes the contours, a preview and the coordinates.

    Raises:
        SlideError: The slide cannot be read, or its magnification is unknown.
        AnnotationError: Existing contours cannot be read.
        ExtractionError: Existing coordinates do not fit.
    """
    if not settings.resegment:
        kept = _kept_coords(job, folder, settings)
        if kept is not None:
            return kept
    contours = folder.contours(job.slide_id)
    find_again = settings.resegment or _are_of_another_slide(contours, job, folder)
    with warnings.catch_warnings(record=True) as caught, open_slide(job.path) as slide:
        warnings.simplefilter("always")
        resolution = job.resolution(slide)
        if find_again or not contours.exists():
            write_contours(contours, segment_tissue(slide, resolution, settings.tissue))
        tissue = read_contours(contours)  # as a resumed extraction has it
        patches = place_patches(tissue, slide, resolution, settings.patches)
        write_preview(
            folder.preview(job.slide_id),
            slide,
            tissue,
            coords=patches.coords,
            side=patches.side,
            mpp=resolution.mpp,
        )
        mpp, magnification = job.given(is_unstated=slide.mpp is None and slide.objective is None)
    record = {
        _CONTOURS: _sha256(contours),
        _MIN_TISSUE: float(settings.patches.min_tissue),
        _BYTES: _num_bytes(job.path),
        "mpp": resolution.mpp,
        _SOURCE: resolution.source,
        _GIVEN_MPP: mpp or 0.0,
        _GIVEN_MAGNIFICATION: magnification or 0.0,
    }
    write_coords(folder.coords(job.slide_id), patches, attributes=record)
    ours = (SlideWarning, SkippedRegionWarning)
    notes = [str(warning.message) for warning in caught if issubclass(warning.category, ours)]
    if len(patches.coords) == 0 and not tissue.area.is_empty:
        notes.append("It has tissue, but no whole patch with enough of it.")
    return PreparedSlide(patches, record, tuple(notes))


def stored_record(path: Path) -> Record | None:
    """Read the record of a file of coordinates or embeddings.

    Returns:
        Its record, which is empty in files of other tools; None if the file is damaged or absent.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            coords = own_dataset(file, "coords", path)
            if coords is None:
                return None
            attributes = dict(coords.attrs)
    except Exception:  # noqa: BLE001 (a damaged file fails in many ways)
        return None
    return {name: attributes[name] for name in _RECORDED if name in attributes}


def outdated(
    stored: Record, job: SlideJob, folder: ExtractionFolder, settings: ExtractionSettings
) -> str:
    """Return why files with this record must be made again; empty if they can be kept.

    Files of other tools have no record and are kept.
    """
    contours = folder.contours(job.slide_id)
    if _CONTOURS in stored and contours.exists() and stored[_CONTOURS] != _sha256(contours):
        return "its contours were edited"
    if _MIN_TISSUE in stored and stored[_MIN_TISSUE] != settings.patches.min_tissue:
        return f"its patches were kept from {stored[_MIN_TISSUE]:g} tissue on"
    if _BYTES in stored and stored[_BYTES] != _num_bytes(job.path):
        return "its slide file has changed"
    if _SOURCE in stored:
        given = job.given(is_unstated=stored[_SOURCE] == "given")
        before = stored.get(_GIVEN_MPP) or None, stored.get(_GIVEN_MAGNIFICATION) or None
        if given not in ((None, None), before):
            return "another magnification is given now"
    return ""


def _kept_coords(
    job: SlideJob, folder: ExtractionFolder, settings: ExtractionSettings
) -> PreparedSlide | None:
    file = folder.coords(job.slide_id)
    if not file.exists():
        return None
    record = stored_record(file)
    if record is None or outdated(record, job, folder, settings):
        return None  # patches of a damaged file are placed again
    patches = replace(read_coords(file), slide_id=job.slide_id)
    if patches.size != settings.patches.size:
        raise ExtractionError(
            f"Expected coordinates of patches of {settings.patches.size} px in '{file}', but they "
            f"are of {patches.size} px. Remove the file, or ask for that `patch_size`."
        )
    if record:
        return PreparedSlide(patches, record)
    _check_within(patches, job, file)
    note = "Its coordinates come from another tool and are used as they are."
    return PreparedSlide(patches, {}, (note,))


def _check_within(patches: Patches, job: SlideJob, file: Path) -> None:
    """Refuse coordinates of another slide, whose patches begin beyond the end of this one."""
    with open_slide(job.path) as slide:
        beyond = (patches.coords >= np.array(slide.size)).any(axis=1) | (
            patches.coords <= -patches.side
        ).any(axis=1)
    if beyond.any():
        x, y = patches.coords[beyond][0].tolist()
        raise ExtractionError(
            f"Expected patches on the slide '{job.path}' of {slide.size[0]} × {slide.size[1]} px, "
            f"but '{file}' has one at ({x}, {y}). Remove the file to place the patches again."
        )


def _are_of_another_slide(contours: Path, job: SlideJob, folder: ExtractionFolder) -> bool:
    """Return whether unedited contours belong to another slide file of this name."""
    stored = stored_record(folder.coords(job.slide_id)) or {}
    is_other = stored.get(_BYTES) not in (None, _num_bytes(job.path))
    return is_other and contours.exists() and stored[_CONTOURS] == _sha256(contours)


def _num_bytes(path: Path) -> int:
    """Return the size of a slide file, which shows whether it was replaced."""
    return path.stat().st_size if path.is_file() else 0


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
