"""Bags whose features lie on a GPU, all of them, end to end in one matrix.

A data set of slides has a few gigabytes of features; a GPU has dozens. Once they are there, no step
of training waits for a disk or for the bus, and all folds of a cross-validation share them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.readers import BagHeader
from sgpmil.bags.sources import BagSource
from sgpmil.bags.store import PackedStore
from sgpmil.bags.store_reader import StoreReader
from sgpmil.gpu.memory import free_memory
from sgpmil.shapes import Float

__all__ = ["DeviceSource", "fits_on_device", "on_device", "where_it_fits"]

_ROWS_AT_ONCE = 65_536
"""Rows of a packed store that are read at a time."""


class DeviceSource:
    """Bags on a device. Make one with `on_device`.

    Args:
        origin: Where they come from.
        matrix: Features of all bags end to end.
        bags: The bags in the order of their rows; their features are views of the matrix.
    """

    def __init__(
        self, origin: BagSource, matrix: Float[Tensor, "T D"], bags: tuple[Bag, ...]
    ) -> None:
        self.origin = origin
        self.matrix = matrix
        self._bags = {bag.slide_id: bag for bag in bags}
        self._starts: dict[str, int] = {}
        row = 0
        for bag in bags:
            self._starts[bag.slide_id] = row
            row += bag.num_instances

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        return tuple(self._bags)

    def read(self, slide_id: str) -> Bag:
        """Return a bag; its features are on the device.

        Raises:
            BagError: The slide is unknown.
        """
        found = self._bags.get(slide_id)
        return self.origin.read(slide_id) if found is None else found

    def start(self, slide_id: str) -> int:
        """Return the first row of a bag that is on the device."""
        return self._starts[slide_id]

    def header(self, slide_id: str) -> BagHeader:
        """Say how large a bag is and what else is known of it."""
        return self.origin.header(slide_id)

    def stamp(self, slide_id: str) -> str:
        """Return a text that changes when the bag's content does."""
        return self.origin.stamp(slide_id)


def fits_on_device(dataset: BagDataset, device: torch.device) -> bool:
    """Say whether the features of a data set take no more than half of a GPU's free memory."""
    if device.type != "cuda":
        return False
    free = free_memory(device)
    return 2 * _num_bytes(dataset) < free


def where_it_fits(dataset: BagDataset, device: torch.device) -> BagDataset:
    """Move a data set to a device if it fits there; otherwise return it as it is."""
    if isinstance(dataset.source, DeviceSource):
        return dataset
    return on_device(dataset, device) if fits_on_device(dataset, device) else dataset


def on_device(
    dataset: BagDataset, device: torch.device, on_bag: Callable[[str], None] | None = None
) -> BagDataset:
    """Move the features of a data set to a device, in the precision they are stored in.

    Args:
        dataset: The data set; one that is there already is returned as it is.
        device: The device.
        on_bag: Called with the name of each slide that was moved.

    Raises:
        BagError: A bag is damaged, or holds NaN or infinity.
    """
    if isinstance(dataset.source, DeviceSource):
        return dataset
    matrix = torch.empty(
        sum(dataset.num_instances), dataset.feature_dim, dtype=_stored_dtype(dataset), device=device
    )
    bags: list[Bag] = []
    row = 0
    for group, features in _groups(dataset, pinned=device.type == "cuda"):
        matrix[row : row + len(features)].copy_(features, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the memory that was read into is used again
        for bag in group:
            end = row + bag.num_instances
            bags.append(replace(bag, features=matrix[row:end], is_finite=True))
            row = end
            if on_bag is not None:
                on_bag(bag.slide_id)
    return replace(dataset, source=DeviceSource(dataset.source, matrix, tuple(bags)))


def _groups(
    dataset: BagDataset, *, pinned: bool
) -> Iterator[tuple[list[Bag], Float[Tensor, "T D"]]]:
    """Read bags with their features end to end, many of a packed store at a time."""
    if not isinstance(dataset.source, PackedStore):
        for bag in dataset:
            yield [bag], bag.features
        return
    reader = StoreReader(dataset.source, num_buffers=1, pinned=pinned)
    group: list[Bag] = []
    count = 0
    for bag in dataset:
        group.append(bag)
        count += bag.num_instances
        if count >= _ROWS_AT_ONCE:
            yield group, reader.pack(group).features
            group, count = [], 0
    if group:
        yield group, reader.pack(group).features


def _stored_dtype(dataset: BagDataset) -> torch.dtype:
    stored = {dataset.source.header(slide_id).dtype for slide_id in dataset.slide_ids}
    return torch.float16 if stored == {"float16"} else torch.float32


def _num_bytes(dataset: BagDataset) -> int:
    return sum(dataset.num_instances) * dataset.feature_dim * _stored_dtype(dataset).itemsize
