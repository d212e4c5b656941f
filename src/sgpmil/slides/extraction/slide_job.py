"""A slide to extract, and what became of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sgpmil.slides.reading import (
    Resolution,
    Slide,
    find_slides,
    read_slide_list,
    slide_resolution,
)

__all__ = ["PROCESS_DIED", "SlideJob", "SlideOutcome", "Status", "slide_jobs"]

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
