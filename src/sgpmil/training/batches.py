"""The packed batches of an epoch.

Which bags an epoch draws depends on the seed and the epoch alone, so a resumed run sees the same
ones as an uninterrupted run.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.store import PackedStore
from sgpmil.bags.store_reader import StoreReader
from sgpmil.gpu.resident import DeviceSource

__all__ = [
    "PackedBatches",
    "draw_epoch",
    "epoch_batches",
    "read_ahead",
    "sequential_loader",
    "store_reader",
]


def draw_epoch(labels: Sequence[int], *, seed: int, epoch: int, balanced: bool) -> list[int]:
    """Draw the positions of an epoch's bags.

    Args:
        labels: Class of each training bag.
        seed: Seed of the run.
        epoch: Number of the epoch.
        balanced: Draw with replacement, a bag of class c with weight 1 / n_c, as many as there
            are bags; otherwise every bag once, shuffled.
    """
    generator = np.random.default_rng([seed, epoch])
    if not balanced:
        return generator.permutation(len(labels)).tolist()
    classes = np.asarray(labels)
    counts = np.bincount(classes)
    weights = 1.0 / counts[classes]
    return generator.choice(len(labels), size=len(labels), p=weights / weights.sum()).tolist()


class PackedBatches(Dataset[BagBatch]):
    """Groups of bags, each packed when asked for.

    What a reader packs is valid for as long as it says.

    Args:
        dataset: Where bags are read.
        groups: Positions in the data set, a group a batch.
        reader: Reads them faster, where they are a packed store's.
    """

    def __init__(
        self,
        dataset: BagDataset,
        groups: Sequence[Sequence[int]],
        reader: StoreReader | None = None,
    ) -> None:
        self.dataset = dataset
        self.groups = groups
        self.reader = reader

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> BagBatch:
        if not 0 <= index < len(self.groups):
            raise IndexError(index)
        bags: list[Bag] = [self.dataset[position] for position in self.groups[index]]
        return BagBatch.pack(bags) if self.reader is None else self.reader.pack(bags)


def read_ahead(batches: PackedBatches, device: torch.device) -> Iterator[BagBatch]:
    """Give batches on a device; each is read while the one before it is computed with.

    Args:
        batches: The batches.
        device: Where they go.
    """
    if isinstance(batches.dataset.source, DeviceSource):
        # Nothing is read; what is computed belongs on this thread's stream.
        for number in range(len(batches)):
            yield batches[number].to(device, non_blocking=True)
        return
    copied: list[torch.cuda.Event] = []

    def read(number: int) -> BagBatch:
        # A reader's memory is used again: what was in it must have been copied by then.
        if copied and batches.reader is not None and number >= batches.reader.num_buffers:
            copied[number - batches.reader.num_buffers].synchronize()
        return batches[number]

    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reading:
        following = reading.submit(read, 0)
        for number in range(len(batches)):
            batch = following.result().to(device, non_blocking=True)
            if device.type == "cuda":
                copied.append(torch.cuda.Event())
                copied[-1].record()
            if number + 1 < len(batches):
                following = reading.submit(read, number + 1)
            yield batch


def store_reader(dataset: BagDataset, *, pinned: bool = False) -> StoreReader | None:
    """Return what reads a data set's batches faster; None where it is not a packed store.

    Args:
        dataset: The data set.
        pinned: Whether a GPU takes the batches.
    """
    if not isinstance(dataset.source, PackedStore):
        return None
    return StoreReader(dataset.source, pinned=pinned)


def epoch_batches(
    dataset: BagDataset,
    *,
    seed: int,
    epoch: int,
    balanced: bool,
    bags_per_step: int,
    reader: StoreReader | None = None,
) -> PackedBatches:
    """Return the training batches of an epoch."""
    labels = [label for label in dataset.labels if label is not None]
    order = draw_epoch(labels, seed=seed, epoch=epoch, balanced=balanced)
    groups = [order[i : i + bags_per_step] for i in range(0, len(order), bags_per_step)]
    return PackedBatches(dataset, groups, reader)


def sequential_loader(
    dataset: BagDataset, max_bags: int = 64, max_instances: int = 32_768
) -> DataLoader[BagBatch]:
    """Return every bag once, in order.

    Args:
        dataset: The bags.
        max_bags: Most bags of a batch.
        max_instances: Most instances of a batch; a larger bag is a batch of its own.
    """
    groups: list[list[int]] = []
    total = 0
    for position, size in enumerate(dataset.num_instances):
        total += size
        if not groups or len(groups[-1]) == max_bags or total > max_instances:
            groups.append([])
            total = size
        groups[-1].append(position)
    return DataLoader(PackedBatches(dataset, groups), batch_size=None)
