"""Resident bags: the features of a whole data set, end to end in one matrix on a GPU.

A data set of slides has a few gigabytes of features; a GPU has dozens. Once they are there, no step
of training waits for a disk or for the bus, and all folds of a cross-validation share them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.readers.raw import BagHeader
from sgpmil.bags.sources import BagSource
from sgpmil.bags.store import PackedStore, StoreReader
from sgpmil.shapes import Float

_ROWS_AT_ONCE = 65_536
"""Rows of a packed store that are read at a time."""


class DeviceSource:
    """Bags on a device; `on_device` makes one.

    Args:
        origin: Their source.
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
        """Return the size of a bag and its other facts, without its features."""
        return self.origin.header(slide_id)

    def stamp(self, slide_id: str) -> str:
        """Return a text that changes when the bag's content does."""
        return self.origin.stamp(slide_id)


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, after torch has given back the memory that it keeps.

    To give memory back takes some milliseconds, and to take it again as many: not for every step.
    """
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free


def fits_on_device(dataset: BagDataset, device: torch.device) -> bool:
    """Return whether the features of a data set take no more than half of a GPU's free memory."""
    if device.type != "cuda":
        return False
    num_bytes = sum(dataset.num_instances) * dataset.feature_dim * _stored_dtype(dataset).itemsize
    return 2 * num_bytes < free_memory(device)


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
            torch.cuda.synchronize(device)  # the next group is read into the same memory
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
    """Read bags and their features end to end; many at a time from a packed store."""
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
