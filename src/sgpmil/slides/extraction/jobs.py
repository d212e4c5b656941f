"""Slides to extract, their settings and their outcomes."""

import errno
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sgpmil.errors import ExtractionError, SettingsError
from sgpmil.slides.patches import PatchSettings
from sgpmil.slides.reading import Resolution, Slide, find_slides, read_slide_list, slide_resolution
from sgpmil.slides.tissue import TissueSettings

FeatureType = Literal["float16", "float32"]


@dataclass(frozen=True, slots=True)
class ExtractionSettings:
    """Settings of an extraction.

    Args:
        patches: Size, magnification and overlap of the patches.
        tissue: Segmentation of the tissue.
        batch_size: Patches in a batch of the encoder; by default chosen for its device.
        num_workers: Processes that decode tiles; by default one for each core.
        dtype: Number type of the embeddings on disk.
        resegment: Whether to segment the tissue again and replace existing contours.
        overwrite: Whether to extract existing embeddings again.
    """

    patches: PatchSettings = field(default_factory=PatchSettings)
    tissue: TissueSettings = field(default_factory=TissueSettings)
    batch_size: int | None = None
    num_workers: int | None = None
    dtype: FeatureType = "float16"
    resegment: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"Expected `{name}` to be at least 1, but got {value}.")

    def batch_size_on(self, device: str) -> int:
        """Return the batch size for a type of device.

        A CPU is fastest with batches whose activations fit its caches (EfficientNet-lite0 on one
        core: 41 patches a second in batches of 4, 21 in batches of 64).
        """
        return self.batch_size or (64 if device == "cuda" else 8)


Status = Literal["done", "empty", "kept", "busy", "failed"]
"""done: written now; empty: written now, without patches; kept: existed already; busy: another
process works on it; failed: see the reason."""

PROCESS_DIED = "The process that read it died: the file is damaged, or memory is short."


@dataclass(frozen=True, slots=True)
class SlideJob:
    """A slide file, and the resolution that the user states.

    Args:
        path: The slide file.
        mpp: Microns per level-0 pixel of this very slide.
        magnification: Magnification of level 0 of this very slide.
        unstated_mpp: Microns per level-0 pixel of slides whose files do not state it.
        unstated_magnification: Magnification of slides whose files do not state it.
    """

    path: Path
    mpp: float | None = None
    magnification: float | None = None
    unstated_mpp: float | None = None
    unstated_magnification: float | None = None

    @property
    def slide_id(self) -> str:
        """Name of its output files."""
        return self.path.name if self.path.is_dir() else self.path.stem

    def resolution(self, slide: Slide) -> Resolution:
        """Return the resolution: stated for this slide, by its file, or for all slides.

        Raises:
            SlideError: Nothing states it.
        """
        mpp, magnification = self.given(is_unstated=slide.mpp is None and slide.objective is None)
        return slide_resolution(slide, given_mpp=mpp, given_magnification=magnification)

    def given(self, *, is_unstated: bool) -> tuple[float | None, float | None]:
        """Return the microns per pixel and the magnification that the user gives for a slide."""
        given = (self.mpp, self.magnification)
        if given == (None, None) and is_unstated:
            return self.unstated_mpp, self.unstated_magnification
        return given


@dataclass(frozen=True, slots=True)
class SlideOutcome:
    """Outcome of a slide.

    Args:
        slide_id: The slide.
        status: See `Status`.
        num_patches: Patches in its file; 0 if there is no file.
        reason: Cause of a failure, in one sentence.
        notes: Remarks for the user.
    """

    slide_id: str
    status: Status
    num_patches: int = 0
    reason: str = ""
    notes: tuple[str, ...] = ()


def slide_jobs(
    slides: Path,
    *,
    slide_list: Path | None = None,
    recursive: bool = False,
    mpp: float | None = None,
    magnification: float | None = None,
) -> list[SlideJob]:
    """List the slides to extract.

    Args:
        slides: A folder of slides, or one slide.
        slide_list: Table of slides, and of the resolution that their files do not state.
        recursive: Whether to search subfolders.
        mpp: Microns per level-0 pixel of slides whose files do not state it.
        magnification: Magnification of slides whose files do not state it.

    Raises:
        SlideError: There are none, two have the same name, or the table does not fit.
    """
    unstated = {"unstated_mpp": mpp, "unstated_magnification": magnification}
    if slide_list is not None:
        return [
            SlideJob(listed.path, listed.mpp, listed.magnification, **unstated)
            for listed in read_slide_list(slide_list, slides)
        ]
    found = [slides] if slides.is_file() else find_slides(slides, recursive=recursive)
    return [SlideJob(path, **unstated) for path in found]


_FOLDER_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
)


def is_write_failure(error: BaseException) -> bool:
    """Return whether an error means that no file can be written, so that every slide would fail."""
    return isinstance(error, OSError) and error.errno in _FOLDER_ERRORS


def cannot_write(folder: Path, error: OSError) -> ExtractionError:
    """Return the error of a folder that cannot be written."""
    return ExtractionError(
        f"Could not write to {folder}: {error.strerror or error}. Complete files stay. Run the "
        "same command again to resume."
    )
