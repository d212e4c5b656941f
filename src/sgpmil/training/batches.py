"""Packed batches of an epoch.

The bags that an epoch draws depend on the seed and the epoch alone, so a resumed run sees the same
ones as an uninterrupted run.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.sources import MemorySource
from sgpmil.bags.store import PackedStore, StoreReader
from sgpmil.gpu.resident import DeviceSource


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


@dataclass(frozen=True)
class StepPart:
    """The part of a step that one of several processes computes.

    Args:
        sizes: Instances of each bag of the step.
        own: Positions of this process's bags in the step, in order.
        share: Share of the step's bags; 0 of a process that only takes part.
    """

    sizes: tuple[int, ...]
    own: tuple[int, ...]
    share: float


def divide_step(sizes: Sequence[int], num_ranks: int) -> list[tuple[int, ...]]:
    """Divide bags over processes so that each has about as many instances.

    The largest bag that is left goes to the process with the fewest instances so far.

    Args:
        sizes: Instances of each bag.
        num_ranks: Number of processes.

    Returns:
        Positions of each process's bags, in order.

    Example:
        >>> divide_step([10, 900, 20, 30], 2)
        [(1,), (0, 2, 3)]
    """
    parts: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for position in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        rank = min(range(num_ranks), key=loads.__getitem__)
        parts[rank].append(position)
        loads[rank] += sizes[position]
    return [tuple(sorted(part)) for part in parts]


class PackedBatches:
    """Groups of bags, each packed when it is indexed.

    A batch that a reader packed is valid until the reader uses its memory again.

    Args:
        dataset: The bags.
        groups: Positions in the data set, a group a batch.
        reader: Reads bags of a packed store faster.
        parts: Part of each batch in its step, where several processes divide the step.
    """

    def __init__(
        self,
        dataset: BagDataset,
        groups: Sequence[Sequence[int]],
        reader: StoreReader | None = None,
        parts: Sequence[StepPart] | None = None,
    ) -> None:
        self.dataset = dataset
        self.groups = groups
        self.reader = reader
        self.parts = parts

    @property
    def shares(self) -> list[float]:
        """Share of each batch in its step."""
        return [1.0] * len(self) if self.parts is None else [part.share for part in self.parts]

    def divided(self, rank: int, num_ranks: int) -> "PackedBatches":
        """Return the part of each batch that one of several processes computes.

        A process without a bag of a short last batch computes the batch's first bag with a share
        of 0: all processes take every step together.
        """
        sizes = self.dataset.num_instances
        parts = []
        for group in self.groups:
            in_step = tuple(sizes[position] for position in group)
            own = divide_step(in_step, num_ranks)[rank]
            parts.append(StepPart(in_step, own or (0,), len(own) / len(group)))
        groups = [
            [group[i] for i in part.own] for group, part in zip(self.groups, parts, strict=True)
        ]
        return PackedBatches(self.dataset, groups, self.reader, parts)

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[BagBatch]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, index: int) -> BagBatch:
        if not 0 <= index < len(self.groups):
            raise IndexError(index)
        bags: list[Bag] = [self.dataset[position] for position in self.groups[index]]
        return BagBatch.pack(bags) if self.reader is None else self.reader.pack(bags)


def read_ahead(batches: PackedBatches, device: torch.device) -> Iterator[BagBatch]:
    """Yield batches on a device, each read while the one before it is computed with."""
    source = batches.dataset.source
    if isinstance(source, DeviceSource) or (
        isinstance(source, MemorySource) and device.type == "cpu"
    ):
        # Nothing is read. On a GPU, packing is computed on this thread's stream.
        for number in range(len(batches)):
            yield batches[number].to(device, non_blocking=True)
        return
    copied: list[torch.cuda.Event] = []

    def read(number: int) -> BagBatch:
        # A reader uses its memory again: the batch that was in it must have been copied by then.
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
    """Return a faster reader of a packed store; None for other data sets."""
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


def sequential_batches(
    dataset: BagDataset, max_bags: int = 64, max_instances: int = 32_768
) -> PackedBatches:
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
    return PackedBatches(dataset, groups)
