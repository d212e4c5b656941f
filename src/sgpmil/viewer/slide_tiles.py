"""Tiles and pictures of slides, read from files that stay open while they are looked at."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from sgpmil.errors import SlideError
from sgpmil.runs.slide_picture import SlideSources, slide_mpp
from sgpmil.shapes import UInt8
from sgpmil.slides.reading import Slide
from sgpmil.slides.reading.pixels import resize
from sgpmil.viewer.bounded_cache import BoundedCache
from sgpmil.viewer.pyramid import Pyramid
from sgpmil.viewer.safe_paths import is_inside

SLIDE_TILE, SLIDE_OVERLAP = 254, 1
"""Side and overlap of a slide's tiles: 256 pixels with both neighbours."""

_QUALITY = 85
_MOST_OPEN = 8
_MOST_OF_ONE = 3
"""Most open files, and most of one slide: a file is read by one thread at a time."""
_MOST_READ = 4096
"""Longest side of a window that is read for one tile."""
_OVERVIEW = 3200
"""Longest side of the overview that gives the tiles of which more would have to be read."""
_OVERVIEW_BYTES = 2**27


@dataclass(frozen=True, slots=True)
class SlideFrame:
    """Size and resolution of a slide.

    Args:
        width: Width in level-0 pixels.
        height: Height in level-0 pixels.
        mpp: Microns per level-0 pixel; None where unknown.
    """

    width: int
    height: int
    mpp: float | None

    @property
    def pyramid(self) -> Pyramid:
        """Tiles of the slide."""
        return Pyramid(self.width, self.height, SLIDE_TILE, SLIDE_OVERLAP)


class OpenSlides:
    """Slide files that are kept open, at most a few at a time.

    Args:
        sources: Files of the slides.
        folder: Folder that the files must lie in, links followed; None allows any place.
    """

    def __init__(self, sources: SlideSources, folder: Path | None) -> None:
        self.sources = sources
        self.folder = folder
        self._idle: list[Slide] = []
        self._num_open = 0
        self._of_slide: dict[str, int] = {}
        self._changed = threading.Condition()
        self._failures: dict[str, str] = {}
        self._frames: dict[str, SlideFrame] = {}
        self._overviews: BoundedCache[str, UInt8[np.ndarray, "h w 3"]] = BoundedCache(
            _OVERVIEW_BYTES, lambda pixels: pixels.nbytes
        )

    def frame(self, slide_id: str) -> SlideFrame | None:
        """Return the size and resolution of a slide; None where there is no file.

        Raises:
            SlideError: It cannot be read.
        """
        if slide_id not in self._frames:
            if not self.has(slide_id):
                return None
            with self.borrow(slide_id) as slide:
                mpp = slide_mpp(slide) or self.sources.mpp
                self._frames[slide_id] = SlideFrame(*slide.size, mpp)
        return self._frames[slide_id]

    def has(self, slide_id: str) -> bool:
        """Return whether there is a file of the slide, which may be damaged."""
        return slide_id in self.sources.files or slide_id in self.sources.others

    def is_readable(self, slide_id: str) -> bool:
        """Return whether there is a file of the slide that is not known to be damaged."""
        return self.has(slide_id) and slide_id not in self._failures

    @contextmanager
    def borrow(self, slide_id: str) -> Iterator[Slide]:
        """Lend an open slide to one thread while a block runs.

        Raises:
            SlideError: There is no file, it lies elsewhere, or it cannot be opened.
        """
        slide = self._take(slide_id)
        try:
            yield slide
        finally:
            with self._changed:
                self._idle.append(slide)
                self._changed.notify_all()

    def tile(
        self, slide_id: str, level: int, column: int, row: int
    ) -> UInt8[np.ndarray, "h w 3"] | None:
        """Read a tile of a slide, by area averaging; None where there is no such tile.

        Raises:
            SlideError: There is no file, or it is damaged there.
        """
        frame = self.frame(slide_id)
        box = None if frame is None else frame.pyramid.box(level, column, row)
        if frame is None or box is None:
            return None
        x, y, width, height = box
        downsample = frame.pyramid.downsample(level)
        with self.borrow(slide_id) as slide:
            number = slide.level_for(float(downsample))
            factor = downsample / slide.levels[number].downsample
            if max(width, height) * factor <= _MOST_READ:
                across, down = (max(1, round(side * factor)) for side in (width, height))
                window = slide.read(x * downsample, y * downsample, across, down, level=number)
                return resize(window, width, height)
            # A slide of one huge level, seen from far: a tile would need all of its pixels.
            overview = self._overviews.get_or_make(slide_id, lambda: slide.thumbnail(_OVERVIEW))
        scale = downsample * overview.shape[1] / frame.width
        left, right = _span(x, width, scale, overview.shape[1])
        top, bottom = _span(y, height, scale, overview.shape[0])
        return resize(overview[top:bottom, left:right].copy(), width, height)

    def thumbnail(self, slide_id: str, longest: int) -> UInt8[np.ndarray, "h w 3"]:
        """Read a whole slide made smaller.

        Raises:
            SlideError: There is no file, or it is damaged.
        """
        with self.borrow(slide_id) as slide:
            return slide.thumbnail(longest)

    def picture(
        self, slide_id: str, corner: tuple[int, int], side: int, size: int
    ) -> UInt8[np.ndarray, "h w 3"]:
        """Read a square of a slide.

        Raises:
            SlideError: There is no file, or it is damaged there.
        """
        with self.borrow(slide_id) as slide:
            return slide.read_patch(*corner, side, size)

    def close(self) -> None:
        """Close all files that nobody reads."""
        with self._changed:
            while self._idle:
                self._forget(self._idle.pop(0))

    def _take(self, slide_id: str) -> Slide:
        with self._changed:
            if slide_id in self._failures:
                raise SlideError(self._failures[slide_id])
            while True:
                for slide in reversed(self._idle):
                    if slide.slide_id == slide_id:
                        self._idle.remove(slide)
                        return slide
                if self._of_slide.get(slide_id, 0) < _MOST_OF_ONE:
                    if self._num_open < _MOST_OPEN:
                        break
                    if self._idle:
                        self._forget(self._idle.pop(0))
                        break
                self._changed.wait()
            self._num_open += 1
            self._of_slide[slide_id] = self._of_slide.get(slide_id, 0) + 1
        try:
            return self._open(slide_id)
        except BaseException as error:
            with self._changed:
                if isinstance(error, SlideError):
                    self._failures[slide_id] = str(error)
                self._count_closed(slide_id)
            raise

    def _open(self, slide_id: str) -> Slide:
        file = self.sources.files.get(slide_id) or self.sources.others.get(slide_id)
        if file is not None and self.folder is not None and not is_inside(file, self.folder):
            raise SlideError(
                f"Expected the file of '{slide_id}' within the folder of the slides, but it is a "
                "link to another place. Allow such links with --follow-links."
            )
        slide = self.sources.open(slide_id)
        if slide is None:
            raise SlideError(f"There is no file of the slide '{slide_id}'.")
        slide.slide_id = slide_id
        return slide

    def _forget(self, slide: Slide) -> None:
        slide.close()
        self._count_closed(slide.slide_id)

    def _count_closed(self, slide_id: str) -> None:
        self._num_open -= 1
        self._of_slide[slide_id] -= 1
        self._changed.notify_all()


def _span(start: int, length: int, scale: float, most: int) -> tuple[int, int]:
    first = min(round(start * scale), most - 1)
    return first, min(max(first + 1, round((start + length) * scale)), most)


def jpeg(pixels: UInt8[np.ndarray, "h w 3"]) -> bytes:
    """Encode an image as JPEG."""
    from PIL import Image

    content = BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=_QUALITY)
    return content.getvalue()
