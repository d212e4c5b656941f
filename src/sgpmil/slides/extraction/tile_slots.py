"""Memory that the decoding processes write tiles into and the encoding process reads them from."""

import shutil
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np

from sgpmil.shapes import UInt8

__all__ = ["TileSlots"]

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a new folder of ours is made in it


class TileSlots:
    """A fixed number of slots, each for a run of tiles, in a file that all processes map.

    Tiles are large (0.2 MB each): through a pipe they would be copied four times. The file is in
    memory where the system offers that and has room (containers often do not), else in the
    temporary folder, where the system keeps it in memory as long as it can.

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
        """Make a folder for so many bytes of slots."""
        roomy = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 2 * num_bytes
        return Path(tempfile.mkdtemp(prefix="sgpmil-", dir=_SHARED_MEMORY if roomy else None))

    def tiles(self, slot: int, count: int) -> UInt8[np.ndarray, "K P P 3"]:
        """Give the first tiles of a slot, to write or to read."""
        return np.asarray(self._tiles[slot, :count])
