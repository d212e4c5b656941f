"""Slides to extract, their settings and their outcomes."""

import errno
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sgpmil.errors import ExtractionError, SettingsError
from sgpmil.slides.patches import PatchSettings
from sgpmil.slides.reading import (
    Resolution,
    Slide,
    find_slides,
    read_slide_list,
    slide_resolution,
)
from sgpmil.slides.tissue import TissueSettings

__all__ = [
    "PROCESS_DIED",
    "ExtractionSettings",
    "FeatureType",
    "SlideJob",
    "SlideOutcome",
    "Status",
    "cannot_write",
    "is_write_failure",
    "slide_jobs",
]

FeatureType = Literal["float16", "float32"]


@dataclass(frozen=True, slots=True)
class ExtractionSettings:
    """How slides become embeddings.

    Args:
        patches: Size, magnification and overlap of the patches.
        tissue: How tissue is told from background.
        batch_size: Patches that the encoder sees at once; None for what suits its device.
        num_workers: Processes that decode tiles.
        dtype: Number type of the embeddings on disk.
        resegment: Find the tissue again, though contours are there.
        overwrite: Extract again what is there.
    """

    patches: PatchSettings = field(default_factory=PatchSettings)
    tissue: TissueSettings = field(default_factory=TissueSettings)
    batch_size: int | None = None
    num_workers: int = 2
    dtype: FeatureType = "float16"
    resegment: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"Expected `{name}` to be at least 1, but got {value}.")

    def batch_size_on(self, device: str) -> int:
        """Give the batch size for a type of device.

        A CPU is fastest with the few images whose activations its caches hold (EfficientNet-lite0
        on one core: 41 patches a second in batches of 4, 21 in batches of 64).

        Args:
            device: ``cuda`` or ``cpu``, for instance.
        """
        return self.batch_size or (64 if device == "cuda" else 8)


Status = Literal["done", "empty", "kept", "busy", "failed"]
"""done: written now; empty: written now, without tissue; kept: was there already; busy: in the
hands of another process; failed: see the reason."""

PROCESS_DIED = "The process that read it died: the file is damaged, or memory is short."


@dataclass(frozen=True, slots=True)
class SlideJob:
    """A slide file, and what the user says of it.

    Args:
        path: The slide file.
        mpp: Microns a level-0 pixel, said of this very slide.
        magnification: Magnification of level 0, said of this very slide.
        unstated_mpp: Microns a level-0 pixel of slides whose files do not say it.
        unstated_magnification: Magnification of slides whose files do not say it.
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
        """Say how large a pixel is: by what is said of this slide, its file, or of all slides.

        Args:
            slide: The slide, opened.

        Raises:
            SlideError: Nothing says it.
        """
        silent = slide.mpp is None and slide.objective is None
        mpp, magnification = self.given(silent=silent)
        return slide_resolution(slide, given_mpp=mpp, given_magnification=magnification)

    def given(self, *, silent: bool) -> tuple[float | None, float | None]:
        """Give the microns a pixel and the magnification that the user says for this slide.

        Args:
            silent: Whether the file says neither itself.
        """
        said = (self.mpp, self.magnification)
        if said == (None, None) and silent:
            return self.unstated_mpp, self.unstated_magnification
        return said


@dataclass(frozen=True, slots=True)
class SlideOutcome:
    """What became of a slide.

    Args:
        slide_id: The slide.
        status: See `Status`.
        num_patches: Patches in its file; 0 where there is none.
        reason: Why it failed, in one sentence.
        notes: What the user should know of it.
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
    """Name the slides to extract.

    Args:
        slides: A folder of slides, or one slide.
        slide_list: Table of those wanted, and of what their files do not say.
        recursive: Whether to look into subfolders.
        mpp: Microns a level-0 pixel of slides whose files do not say it.
        magnification: Magnification of slides whose files do not say it.

    Raises:
        SlideError: There are none, or two have one name, or the table does not fit.
    """
    unstated = {"unstated_mpp": mpp, "unstated_magnification": magnification}
    if slide_list is not None:
        return [
            SlideJob(listed.path, listed.mpp, listed.magnification, **unstated)
            for listed in read_slide_list(slide_list, slides)
        ]
    found = [slides] if slides.is_file() else find_slides(slides, recursive=recursive)
    return [SlideJob(path, **unstated) for path in found]


_OF_THE_FOLDER = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
)


def is_write_failure(error: BaseException) -> bool:
    """Say whether every further slide would fail of this.

    Args:
        error: What went wrong with a slide.
    """
    return isinstance(error, OSError) and error.errno in _OF_THE_FOLDER


def cannot_write(folder: Path, error: OSError) -> ExtractionError:
    """Make one sentence of it.

    Args:
        folder: The folder of the extraction.
        error: Why it cannot be written.
    """
    return ExtractionError(
        f"Could not write to {folder}: {error.strerror or error}. What is complete stays; run the "
        "same command again to go on."
    )
