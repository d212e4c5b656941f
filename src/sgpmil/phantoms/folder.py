"""Folders of phantoms: slides, their known contents and their labels.

::

    slides/<slide>.tiff              the slides
    annotations/<slide>.geojson      the tumour, exactly as it was drawn
    tissue/<slide>.geojson           the tissue
    regions/<slide>.geojson          glands, lymphocytes, fat, stroma, tumour, folds, pen marks
    labels.csv                       slide_id, case_id, label (normal or tumour)
    phantoms.json                    the settings

The file of a slide is written last, and gets its name when it is whole. So if it exists, all files
of the slide do.
"""

import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.bags.files import read_json, write_text
from sgpmil.errors import SettingsError, SlideError
from sgpmil.options import Options
from sgpmil.phantoms.pyramid_file import PACKAGES, write_phantom
from sgpmil.phantoms.scene import PhantomSettings, make_scene
from sgpmil.phantoms.truth_files import write_regions, write_tissue, write_tumour
from sgpmil.processes import available_cores, hold_interrupts, set_up_worker
from sgpmil.progress import progress_bar
from sgpmil.slides.optional_part import require_package

_NAME = "phantoms.json"
_DRAWING = 1
"""Version of the drawing. It increases when the same settings give other pixels, so that a folder
never mixes them."""
_MOST_SLIDES = 100_000


@dataclass(frozen=True, slots=True)
class PhantomSlide:
    """A slide of a folder.

    Args:
        slide_id: Its name.
        case_id: Name of its patient.
        seed: Seed of its scene.
        settings: Its settings.
    """

    slide_id: str
    case_id: str
    seed: int
    settings: PhantomSettings

    @property
    def label(self) -> str:
        """``tumour`` or ``normal``."""
        return "tumour" if self.settings.tumour_share > 0 else "normal"

    def file(self, folder: Path) -> Path:
        """Return the slide's file in a folder."""
        return folder / "slides" / f"{self.slide_id}.tiff"

    def truth(self, folder: Path, kind: str) -> Path:
        """Return a file of known contents; `kind` is ``annotations``, ``tissue`` or ``regions``."""
        return folder / kind / f"{self.slide_id}.geojson"


@dataclass(frozen=True, slots=True)
class PhantomRecord:
    """Record of how the phantoms of a folder were made.

    Args:
        num_slides: Number of slides.
        seed: Seed of all slides.
        positive_share: Share of slides with a tumour.
        settings: Settings of the slides.
        drawing: Version of the drawing.

    Raises:
        SettingsError: A value is out of range.
    """

    num_slides: int
    seed: int
    positive_share: float
    settings: PhantomSettings
    drawing: int = _DRAWING

    def __post_init__(self) -> None:
        if not 1 <= self.num_slides <= _MOST_SLIDES:
            raise SettingsError(
                f"Expected 1 to {_MOST_SLIDES:,} slides, but got {self.num_slides}. "
                "Change `num_slides`."
            )
        if not 0 <= self.positive_share <= 1:
            raise SettingsError(
                f"Expected a share of slides with a tumour from 0 to 1, but got "
                f"{self.positive_share:g}. Change `positive_share`."
            )
        if self.seed < 0:
            raise SettingsError(
                f"Expected a seed of 0 or more, but got {self.seed}. Change `seed`."
            )

    def slides(self) -> tuple[PhantomSlide, ...]:
        """Return the slides. The first ones stay the same if there are more of them.

        Example:
            >>> record = PhantomRecord(4, 0, 0.5, PhantomSettings())
            >>> [slide.label for slide in record.slides()]
            ['normal', 'tumour', 'normal', 'tumour']
        """
        return tuple(self._slide(number) for number in range(self.num_slides))

    def _slide(self, number: int) -> PhantomSlide:
        share = self.positive_share
        # Positive if the running total passes the next whole number. Rounded to nine digits,
        # because 0.1 + 0.2 is not 0.3.
        positive = int(round((number + 1) * share, 9)) > int(round(number * share, 9))
        seed = np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint32)[0]
        return PhantomSlide(
            slide_id=f"phantom-{number + 1:04d}",
            case_id=f"case-{number + 1:04d}",
            seed=int(seed),
            settings=self.settings if positive else replace(self.settings, tumour_share=0.0),
        )

    def write(self, folder: Path) -> None:
        """Write the record into a folder.

        Raises:
            OSError: It cannot be written.
        """
        write_text(folder / _NAME, json.dumps(asdict(self), indent=2) + "\n")


def claim_folder(folder: Path, record: PhantomRecord, *, overwrite: bool) -> None:
    """Prepare a folder for phantoms: create it, complete its phantoms, or replace them.

    Raises:
        SlideError: It holds something else.
        OSError: It cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or _is_foreign(folder)):
        raise SlideError(
            f"Expected a new folder, or one of phantoms, at '{folder}', but it holds something "
            "else. Choose another."
        )
    before = _read(folder)
    if before is not None and overwrite:
        for slide in before.slides():
            slide.file(folder).unlink(missing_ok=True)
            for kind in ("annotations", "tissue", "regions"):
                slide.truth(folder, kind).unlink(missing_ok=True)
        (folder / "labels.csv").unlink(missing_ok=True)
    elif before is not None:
        difference = _difference(before, record)
        if difference:
            raise SlideError(
                f"Expected a new folder, or phantoms of the same settings, at '{folder}', but got "
                f"{difference}. Choose another, or replace them with `overwrite=True`."
            )
    record.write(folder)


def _is_foreign(folder: Path) -> bool:
    return any(folder.iterdir()) and not (folder / _NAME).exists()


def _read(folder: Path) -> PhantomRecord | None:
    path = folder / _NAME
    if not path.exists():
        return None
    try:
        content = read_json(path)
        settings = content.pop("settings")
        settings["size"] = tuple(settings["size"])
        return PhantomRecord(settings=PhantomSettings(**settings), **content)
    except (ValueError, TypeError, KeyError, AttributeError, SettingsError) as error:
        raise SlideError(
            f"Expected the settings of phantoms in '{path}', but it cannot be read ({error}). "
            "Remove the folder, or choose another."
        ) from error


def _difference(before: PhantomRecord, now: PhantomRecord) -> str:
    """Name the first setting that differs; empty if `before` can become `now`."""
    old, new = ({**asdict(r), **asdict(r.settings)} for r in (before, now))
    for name in new:
        if name not in ("num_slides", "settings") and old[name] != new[name]:
            return f"phantoms of {name.replace('_', ' ')} {_shown(old[name])}"
    if before.num_slides > now.num_slides:
        return f"{before.num_slides} phantoms, more than the {now.num_slides} asked for"
    return ""


def _shown(value: object) -> str:
    return "×".join(map(str, value)) if isinstance(value, tuple) else str(value)


_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class PhantomFolder:
    """A folder of phantoms.

    Args:
        folder: The folder.
        slides: Its slides.
        num_written: Number of slides written now; the others existed before.
    """

    folder: Path
    slides: tuple[PhantomSlide, ...]
    num_written: int

    @property
    def labels(self) -> Path:
        """The table of labels."""
        return self.folder / "labels.csv"


@dataclass(frozen=True, kw_only=True)
class PhantomOptions(Options):
    """Options of a folder of phantoms.

    Args:
        out: Folder to write.
        num_slides: Number of slides.
        tumour_share: Share of the tissue that is tumour, on slides that have one.
        positive_share: Share of the slides that have a tumour.
        size: Width and height in pixels, such as 8000x6000.
        mpp: Microns per pixel: 0.25 for 40×, 0.5 for 20×.
        pen_share: Probability that a slide has pen marks.
        fold_share: Probability that the tissue has a fold.
        quality: JPEG quality.
        seed: Seed.
        workers: Number of processes; by default one for each core.
        overwrite: Replace phantoms of other settings.
    """

    out: Path
    num_slides: int = 20
    tumour_share: float = 0.05
    positive_share: float = 0.5
    size: str | tuple[int, int] = "6144x4608"
    mpp: float = 0.5
    pen_share: float = 0.3
    fold_share: float = 0.5
    quality: int = 90
    seed: int = 0
    workers: int | None = None
    overwrite: bool = False

    @property
    def settings(self) -> PhantomSettings:
        """The settings of the slides."""
        return PhantomSettings(
            size=_read_size(self.size) if isinstance(self.size, str) else self.size,
            mpp=self.mpp,
            tumour_share=self.tumour_share,
            pen_share=self.pen_share,
            fold_share=self.fold_share,
            quality=self.quality,
        )


def _read_size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"\s*(\d{1,9})\s*[x×X]\s*(\d{1,9})\s*", text)
    if found is None:
        raise SettingsError(
            f"Expected a size as WIDTHxHEIGHT in pixels, such as 8000x6000, but got '{text}'. "
            "Change `size`."
        )
    return int(found[1]), int(found[2])


def draw_phantoms(options: PhantomOptions, *, show_progress: bool = False) -> PhantomFolder:
    """Write a folder of synthetic slides, as ``sgpmil phantom`` does; see `write_phantoms`.

    Args:
        options: Folder, slides and seed.
        show_progress: Whether to show a progress bar on standard error.

    Raises:
        SettingsError: An option is out of range.
        SlideError: The folder holds something else, or cannot be written.
        MissingPartError: An optional package is not installed.
    """
    return write_phantoms(
        options.out,
        options.num_slides,
        options.settings,
        options.seed,
        positive_share=options.positive_share,
        workers=options.workers,
        overwrite=options.overwrite,
        show_progress=show_progress,
    )


def write_phantoms(
    folder: str | os.PathLike[str],
    num_slides: int = 20,
    settings: PhantomSettings | None = None,
    seed: int = 0,
    *,
    positive_share: float = 0.5,
    workers: int | None = None,
    overwrite: bool = False,
    show_progress: bool = False,
) -> PhantomFolder:
    """Write synthetic slides with their known contents. A stopped run resumes where it left off.

    The same arguments give the same pixels, with any number of workers. Worker processes are
    spawned, so a script that uses several needs ``if __name__ == "__main__"``.

    Args:
        folder: Folder to write: new, or with phantoms of the same settings.
        num_slides: Number of slides. A later run may ask for more.
        settings: Settings of the slides with a tumour; the others have none.
        seed: Seed of all slides.
        positive_share: Share of slides with a tumour.
        workers: Number of processes; by default one for each core.
        overwrite: Whether to replace phantoms of other settings.
        show_progress: Whether to show a progress bar on standard error.

    Raises:
        SettingsError: A setting is out of range.
        SlideError: The folder holds something else, or cannot be written.
        MissingPartError: An optional package is not installed.
    """
    if workers is not None and workers < 1:
        raise SettingsError(f"Expected 1 or more workers, but got {workers}. Change `workers`.")
    for package in PACKAGES:
        require_package(package)
    record = PhantomRecord(num_slides, seed, positive_share, settings or PhantomSettings())
    place, slides = Path(folder), record.slides()
    try:
        claim_folder(place, record, overwrite=overwrite)
        missing = [slide for slide in slides if not slide.file(place).exists()]
        num_kept = num_slides - len(missing)
        with progress_bar(
            "Drawing", num_slides, "slides", num_done=num_kept, show=show_progress
        ) as bar:
            numbers, num_drawn = count(num_kept + 1), 0

            def draw(num_rows: int) -> None:
                nonlocal num_drawn
                num_drawn += num_rows
                bar.reach(num_kept + num_drawn / record.settings.size[1])

            def finish(slide: PhantomSlide) -> None:
                bar.log(f"{next(numbers)} of {num_slides}: {slide.slide_id}")

            num_workers = min(workers or available_cores(), len(missing))
            if num_workers > 1:
                _write_in_parallel(place, missing, num_workers, draw, finish)
            else:
                for slide in missing:
                    _write_slide(place, slide, draw)
                    finish(slide)
        rows = [f"{slide.slide_id},{slide.case_id},{slide.label}\n" for slide in slides]
        write_text(place / "labels.csv", "slide_id,case_id,label\n" + "".join(rows))
    except OSError as error:
        raise SlideError(
            f"Could not write phantoms to '{place}': {error.strerror or error}. Free some space or "
            "choose another folder, and run this again: it resumes where it left off."
        ) from error
    return PhantomFolder(place, slides, len(missing))


def _write_slide(folder: Path, slide: PhantomSlide, on_rows: Callable[[int], None]) -> None:
    scene = make_scene(slide.seed, slide.settings)
    write_tumour(slide.truth(folder, "annotations"), scene)
    write_tissue(slide.truth(folder, "tissue"), scene)
    write_regions(slide.truth(folder, "regions"), scene)
    write_phantom(slide.file(folder), scene, on_rows=on_rows)


def _write_in_parallel(
    folder: Path,
    slides: list[PhantomSlide],
    num_workers: int,
    draw: Callable[[int], None],
    finish: Callable[[PhantomSlide], None],
) -> None:
    context = get_context("spawn")  # a fork would copy the locks of other threads
    stop, drawn = context.Event(), context.Value("q", 0)
    num_drawn = 0
    pool = ProcessPoolExecutor(num_workers, context, _start_worker, (stop, drawn))
    try:
        with hold_interrupts():  # submitting starts the processes
            waiting = {pool.submit(_work, folder, slide): slide for slide in slides}
        while waiting:
            done, _ = wait(waiting, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            total = drawn.value
            draw(total - num_drawn)
            num_drawn = total
            for future in done:
                future.result()
                finish(waiting.pop(future))
    except BrokenProcessPool as error:
        raise SlideError(
            "Expected the worker processes to finish, but one was ended from outside, perhaps "
            "because memory ran out. Run this again with fewer `workers`: it resumes where it left "
            "off."
        ) from error
    finally:
        # After a failure or Ctrl-C, partly drawn slides are removed.
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


class _Stopped(Exception):  # noqa: N818 (not an error: the main process asked for it)
    """The main process asked to stop, or died."""


@dataclass(slots=True, eq=False)
class _Worker:
    """State of a worker process."""

    stop: Any
    drawn: Any
    idle: threading.Event
    orphaned: threading.Event

    def end(self) -> None:
        """Stop drawing and wait until the partly drawn file is removed."""
        self.orphaned.set()
        self.idle.wait()


_worker: _Worker | None = None


def _start_worker(stop: Any, drawn: Any) -> None:
    import cv2

    global _worker
    cv2.setNumThreads(1)
    _worker = _Worker(stop, drawn, threading.Event(), threading.Event())
    _worker.idle.set()
    set_up_worker(on_orphaned=_worker.end)


def _work(folder: Path, slide: PhantomSlide) -> None:
    worker = _worker
    if worker is None:
        raise RuntimeError("the worker process was not started by _start_worker")

    def add(num_rows: int) -> None:
        with worker.drawn.get_lock():
            worker.drawn.value += num_rows
        if worker.stop.is_set() or worker.orphaned.is_set():
            raise _Stopped

    worker.idle.clear()
    try:
        _write_slide(folder, slide, add)
    finally:
        worker.idle.set()
