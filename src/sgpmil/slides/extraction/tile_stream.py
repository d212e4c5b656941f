"""Stream of the tiles of many slides, in order, decoded ahead of the consumer."""

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from sgpmil.processes import hold_interrupts
from sgpmil.shapes import UInt8
from sgpmil.slides.extraction.jobs import ExtractionSettings, SlideJob
from sgpmil.slides.extraction.preparation import PreparedSlide
from sgpmil.slides.extraction.tile_workers import TileWorkers
from sgpmil.slides.patches import ExtractionFolder


@dataclass(frozen=True, slots=True, eq=False)
class SlideBegin:
    """The start of a slide, whose batches follow.

    Args:
        job: The slide.
        prepared: Positions of its patches.
    """

    job: SlideJob
    prepared: PreparedSlide


@dataclass(frozen=True, slots=True, eq=False)
class TileBatch:
    """The next patches of the current slide.

    Args:
        tiles: Their pixels.
    """

    tiles: UInt8[np.ndarray, "K P P 3"]


@dataclass(frozen=True, slots=True, eq=False)
class SlideEnd:
    """The end of a slide, after its last batch or a failure.

    Args:
        job: The slide.
        error: Cause of the failure.
    """

    job: SlideJob
    error: Exception | None = None


StreamItem = SlideBegin | TileBatch | SlideEnd

_READY = 2
"""Batches that wait for the consumer."""

_AHEAD = 2
"""Slides whose patches are placed while an earlier slide is decoded. They are locked meanwhile, so
there are few of them: other processes may want them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A run of tiles that a process decodes into a slot."""

    slot: int
    start: int
    stop: int
    done: "Future[None]"


def tile_stream(
    jobs: Iterable[SlideJob],
    workers: TileWorkers,
    folder: ExtractionFolder,
    settings: ExtractionSettings,
    batch_size: int,
) -> Generator[StreamItem]:
    """Yield the tiles of slides, batch by batch and slide by slide.

    A batch holds consecutive patches of one slide, and always the same ones, because encoders may
    round differently in batches of another size. While the consumer works on a batch, a thread
    gathers the next ones, and the processes decode further ahead, also into the next slides. So the
    consumer hardly ever waits.
    """
    ready: queue.Queue[StreamItem | BaseException | None] = queue.Queue(maxsize=_READY)
    stop = threading.Event()

    def give(item: StreamItem | BaseException | None) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def gather() -> None:
        try:
            with hold_interrupts():  # this thread may start processes, too
                for item in _gather(jobs, workers, folder, settings, batch_size):
                    give(item)
                    if stop.is_set():
                        return
        except BaseException as error:  # noqa: BLE001 - raised again where it can be handled
            give(error)
        give(None)

    thread = threading.Thread(target=gather, name="tiles", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def _gather(
    jobs: Iterable[SlideJob],
    workers: TileWorkers,
    folder: ExtractionFolder,
    settings: ExtractionSettings,
    batch_size: int,
) -> Iterator[StreamItem]:
    free = deque(range(workers.slots.num_slots))
    waiting = iter(jobs)
    more = True
    preparing: deque[tuple[SlideJob, Future[PreparedSlide]]] = deque()
    slides: deque[_SlideUnderWay] = deque()
    while more or preparing or slides:
        while more and len(preparing) < _AHEAD:
            upcoming = next(waiting, None)
            more = upcoming is not None
            if upcoming is not None:
                preparing.append((upcoming, workers.prepare(upcoming, folder, settings)))
        # Hand out tiles of the slides whose patches are known. Wait for a slide only if its tiles
        # are next, so that a slow preparation does not delay the slide before it.
        if preparing and (not slides or (slides[-1].all_handed_out and _is_done(preparing))):
            slides.append(_SlideUnderWay(*preparing.popleft(), batch_size))
        for slide in slides:
            slide.hand_out(workers, free)
        if slides:
            yield from slides[0].take(workers, free)
            if slides[0].ended:
                slides.popleft()


def _is_done(preparing: "deque[tuple[SlideJob, Future[PreparedSlide]]]") -> bool:
    return preparing[0][1].done()


class _SlideUnderWay:
    """A slide whose tiles are being decoded."""

    def __init__(self, job: SlideJob, future: "Future[PreparedSlide]", batch_size: int) -> None:
        self.job = job
        self.ended = False
        self._batch_size = batch_size
        self._runs: deque[_Run] = deque()
        self._handed_out = self._taken = 0
        self._begun = False
        self._error: Exception | None = None
        self._prepared: PreparedSlide | None = None
        try:
            self._prepared = future.result()
        except BrokenProcessPool:
            raise
        except Exception as error:  # noqa: BLE001 - one slide's failure must not stop the others
            self._error = error

    @property
    def all_handed_out(self) -> bool:
        return self._error is not None or self._handed_out == self._num_patches

    @property
    def _num_patches(self) -> int:
        return 0 if self._prepared is None else len(self._prepared.patches.coords)

    def hand_out(self, workers: TileWorkers, free: "deque[int]") -> None:
        """Let the processes decode while there are free slots."""
        while free and not self.all_handed_out and self._prepared is not None:
            stop = min(self._handed_out + workers.slots.tiles_per_slot, self._num_patches)
            patches, slot = self._prepared.patches, free.popleft()
            coords = patches.coords[self._handed_out : stop]
            done = workers.decode(slot, self.job.path, coords, patches.side)
            self._runs.append(_Run(slot, self._handed_out, stop, done))
            self._handed_out = stop

    def take(self, workers: TileWorkers, free: "deque[int]") -> Iterator[StreamItem]:
        """Yield the next items: the start, a batch or the end."""
        if self._prepared is not None and not self._begun:
            self._begun = True
            yield SlideBegin(self.job, self._prepared)
        if self._taken < self._num_patches and self._error is None:
            batch = self._take_batch(workers, free)
            if batch is not None:
                yield TileBatch(batch)
        if self._error is not None:
            self._drain(free)
        if self._taken == self._num_patches or self._error is not None:
            self.ended = True
            yield SlideEnd(self.job, self._error)

    def _take_batch(
        self, workers: TileWorkers, free: "deque[int]"
    ) -> UInt8[np.ndarray, "K P P 3"] | None:
        assert self._prepared is not None  # noqa: S101 - it has patches
        start, size = self._taken, self._prepared.patches.size
        end = min(start + self._batch_size, self._num_patches)
        tiles = np.empty((end - start, size, size, 3), np.uint8)
        while self._taken < end:
            run = self._runs[0]
            try:
                run.done.result()
            except BrokenProcessPool:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                self._error = error
                return None
            stop = min(run.stop, end)
            decoded = workers.slots.tiles(run.slot, run.stop - run.start)
            tiles[self._taken - start : stop - start] = decoded[
                self._taken - run.start : stop - run.start
            ]
            self._taken = stop
            if stop == run.stop:
                free.append(self._runs.popleft().slot)
                self.hand_out(workers, free)
        return tiles

    def _drain(self, free: "deque[int]") -> None:
        """Free the slots of a failed slide once no process writes to them."""
        for run in self._runs:
            run.done.cancel()
            wait([run.done])
            free.append(run.slot)
        self._runs.clear()
