"""Processes that open slides, place patches and decode tiles."""

import shutil
import tempfile
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import numpy as np

from sgpmil.errors import ExtractionError
from sgpmil.processes import available_cores, hold_interrupts, set_up_worker
from sgpmil.shapes import Int, UInt8
from sgpmil.slides.extraction.jobs import ExtractionSettings, SlideJob
from sgpmil.slides.extraction.preparation import PreparedSlide, prepare_slide
from sgpmil.slides.patches import ExtractionFolder
from sgpmil.slides.reading import Slide, open_slide

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a new folder of ours is made in it


class TileSlots:
    """A fixed number of slots, each for a run of tiles, in a file that all processes map.

    Tiles are large (0.2 MB each), and a pipe would copy them four times. The file lies in shared
    memory if the system has enough of it (containers often do not), else in the temporary folder,
    where the system keeps it in memory as long as it can.

    Args:
        folder: Folder of the file.
        num_slots: Number of slots.
        tiles_per_slot: Tiles of a slot.
        size: Side of a tile in pixels.
    """

    def __init__(self, folder: Path, num_slots: int, tiles_per_slot: int, size: int) -> None:
        self.folder = folder
        self.num_slots = num_slots
        self.tiles_per_slot = tiles_per_slot
        shape = (num_slots, tiles_per_slot, size, size, 3)
        path = folder / "tiles"
        mode: Literal["r+", "w+"] = "r+" if path.exists() else "w+"
        self._tiles = np.memmap(path, dtype=np.uint8, mode=mode, shape=shape)

    @staticmethod
    def new_folder(num_bytes: int) -> Path:
        """Make a folder for slots of this many bytes."""
        roomy = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 2 * num_bytes
        return Path(tempfile.mkdtemp(prefix="sgpmil-", dir=_SHARED_MEMORY if roomy else None))

    def tiles(self, slot: int, count: int) -> UInt8[np.ndarray, "K P P 3"]:
        """Return the first tiles of a slot, to write or to read."""
        return np.asarray(self._tiles[slot, :count])


_SLOT_BYTES = 12 * 2**20
_FEWEST_TILES, _MOST_TILES = 4, 64
"""Fewest and most tiles that a process decodes at a time. Neighbours share parts of the file that
are decoded once, so runs are long, in bounded memory."""


class TileWorkers:
    """A pool of processes, and the memory in which they return tiles.

    Args:
        num_workers: Number of processes; None for one for each core.
        size: Side of a tile in pixels.
        batch_size: Patches in a batch, at least as many as tiles under way.
    """

    def __init__(self, num_workers: int | None, size: int, batch_size: int) -> None:
        num_workers = num_workers or available_cores()
        tile_bytes = size * size * 3
        tiles_per_slot = max(_FEWEST_TILES, min(_SLOT_BYTES // tile_bytes, _MOST_TILES))
        num_slots = 2 * num_workers + -(-batch_size // tiles_per_slot)
        folder = TileSlots.new_folder(num_slots * tiles_per_slot * tile_bytes)
        layout = (folder, num_slots, tiles_per_slot, size)
        self.num_workers = num_workers
        try:
            self.slots = TileSlots(*layout)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ExtractionError(
                f"Could not make room for tiles in {folder.parent}: {error.strerror or error}. "
                "Take fewer `workers`, or set TMPDIR to a folder with space."
            ) from error
        # A process forked from a parent with threads (torch's, CUDA's) may hang, so spawn.
        self._pool = ProcessPoolExecutor(
            num_workers, mp_context=get_context("spawn"), initializer=_start, initargs=layout
        )
        with hold_interrupts():
            for _ in range(num_workers):
                self._pool.submit(_be_ready)  # starts a process now, not at the first tiles

    def prepare(
        self, job: SlideJob, folder: ExtractionFolder, settings: ExtractionSettings
    ) -> "Future[PreparedSlide]":
        """Start to place the patches of a slide."""
        return self._pool.submit(prepare_slide, job, folder, settings)

    def decode(
        self, slot: int, path: Path, coords: Int[np.ndarray, "K 2"], side: int
    ) -> "Future[None]":
        """Start to decode patches of a slide into a slot."""
        return self._pool.submit(_decode, slot, path, coords, side)

    def close(self) -> None:
        """Stop the processes, and drop tasks that have not started."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self.slots.folder, ignore_errors=True)

    def __enter__(self) -> "TileWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_slots: TileSlots | None = None
_open: Slide | None = None
"""State of a process between tasks: the memory, and the slide that it read last."""


def _start(folder: Path, num_slots: int, tiles_per_slot: int, size: int) -> None:
    """Set up a process."""
    global _slots
    set_up_worker(on_orphaned=lambda: shutil.rmtree(folder, ignore_errors=True))
    import cv2

    cv2.setNumThreads(1)  # The processes are the parallelism.
    _slots = TileSlots(folder, num_slots, tiles_per_slot, size)


def _be_ready() -> None:
    """Do nothing, in a process that has started."""


def _decode(slot: int, path: Path, coords: Int[np.ndarray, "K 2"], side: int) -> None:
    global _open
    if _open is None or _open.path != path:
        if _open is not None:
            _open.close()
        _open = None
        _open = open_slide(path)
    assert _slots is not None  # noqa: S101 - the pool's initialiser sets it
    tiles: UInt8[np.ndarray, "K P P 3"] = _slots.tiles(slot, len(coords))
    for tile, (x, y) in zip(tiles, coords.tolist(), strict=True):
        tile[:] = _open.read_patch(x, y, side, tile.shape[0])
