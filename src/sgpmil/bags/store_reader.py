"""Batches of a packed store, read into memory that is used again.

Bags that are taken from the memory-mapped file cost a page fault every few kilobytes, and fresh
memory for each batch as many again. Reading the rows of each bag with one call into memory that is
already there goes as fast as the disk does.
"""

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.store import PackedStore
from sgpmil.errors import BagError

__all__ = ["StoreReader"]

_READERS = 4
_MOST_BYTES = 2**30
"""Bytes of one call: systems read no more than two gibibytes at a time."""


class StoreReader:
    """Reads bags of a store packed end to end.

    The features of a batch are overwritten by the batch after the next three: who wants to keep
    them copies them.

    Args:
        store: The store.
        num_buffers: Batches that are valid at a time.
        pinned: Whether the memory is pinned, so that a GPU takes batches from it by itself.
    """

    def __init__(self, store: PackedStore, *, num_buffers: int = 4, pinned: bool = False) -> None:
        self.store = store
        self.num_buffers = num_buffers
        self._pinned = pinned
        # A disk works on several requests at a time.
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store")
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * num_buffers
        self._next = 0
        self._dtype = np.dtype(store.index.dtype)
        self._row_bytes = store.index.feature_dim * self._dtype.itemsize
        self._path = store.path / "features.npy"
        self._header = self._path.stat().st_size - store.index.num_rows * self._row_bytes

    def pack(self, bags: Sequence[Bag]) -> BagBatch:
        """Read bags of the store packed end to end.

        Args:
            bags: Bags as the store gives them, whose features are not looked at.

        Raises:
            BagError: The file was changed or cut short meanwhile.
        """
        buffer = self._buffer(sum(bag.num_instances for bag in bags) * self._row_bytes)
        view = memoryview(buffer.numpy().data)
        places = [self._place(bag.slide_id) for bag in bags]
        ends = list(itertools.accumulate(size for _, size in places))
        file = os.open(self._path, os.O_RDONLY)

        def read(number: int) -> None:
            offset, size = places[number]
            _read_into(file, view[ends[number] - size : ends[number]], offset, self._path)

        try:
            list(self._readers.map(read, range(len(places))))
        finally:
            os.close(file)
        kind = torch.float16 if self._dtype == np.float16 else torch.float32
        features = buffer.view(kind).view(-1, self.store.index.feature_dim)
        return BagBatch.pack(bags, features)

    def _place(self, slide_id: str) -> tuple[int, int]:
        """Say where in the file a bag begins, and how many bytes it has."""
        rows = self.store.rows(slide_id)
        offset = self._header + rows.start * self._row_bytes
        return offset, (rows.stop - rows.start) * self._row_bytes

    def _buffer(self, num_bytes: int) -> Tensor:
        """Give the memory that was used longest ago, made larger where it is too small."""
        place, self._next = self._next, (self._next + 1) % len(self._buffers)
        if len(self._buffers[place]) < num_bytes:
            # Some room to grow, or every slightly larger batch would take new memory.
            room = num_bytes + num_bytes // 4
            self._buffers[place] = torch.empty(room, dtype=torch.uint8, pin_memory=self._pinned)
        return self._buffers[place][:num_bytes]


def _read_into(file: int, memory: memoryview, offset: int, path: Path) -> None:
    done = 0
    while done < len(memory):
        count = os.preadv(file, [memory[done : done + _MOST_BYTES]], offset + done)
        if count == 0:
            raise BagError(
                f"Expected {len(memory) - done} more bytes of features, but the file ends ({path})."
                " Pack the bags again."
            )
        done += count
