"""Bags in Ray's object store: each machine of a cluster receives them once."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.readers.raw import BagHeader
from sgpmil.bags.sources import BagSource, MemorySource
from sgpmil.scaleout.ray_cluster import connect


class _SharedSource:
    """Bags in the object store; where it is unpickled, it is bags in that machine's memory.

    Args:
        source: The bags on this machine.
        content: Reference of the bags in the object store.
    """

    def __init__(self, source: BagSource, content: Any) -> None:
        self._source = source
        self._content = content

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        return self._source.slide_ids

    def read(self, slide_id: str) -> Bag:
        """Read a bag on this machine."""
        return self._source.read(slide_id)

    def header(self, slide_id: str) -> BagHeader:
        """Return the size and description of a bag."""
        return self._source.header(slide_id)

    def stamp(self, slide_id: str) -> str:
        """Return a text that changes when the bag's content does."""
        return self._source.stamp(slide_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self._content,)


@dataclass(frozen=True)
class _Content:
    """Bags as few large arrays, which the object store hands out without a copy."""

    bags: Sequence[Bag]  # without their tensors
    bounds: Sequence[tuple[int, int]]
    stamps: Sequence[str]
    features: NDArray[Any]
    coords: Sequence[NDArray[Any] | None]
    instance_labels: Sequence[NDArray[Any] | None]


def share_bags(bags: BagDataset, address: str | None = None) -> BagDataset:
    """Put bags into the object store of a cluster.

    Args:
        bags: The bags; all of them are read.
        address: Address of the cluster, as of `connect`.

    Returns:
        The same bags. A worker that receives them reads them from its machine's shared memory.
    """
    connect(address)
    read = [bags.source.read(slide) for slide in bags.slide_ids]
    ends = np.cumsum([bag.num_instances for bag in read]).tolist()
    bounds = list(zip([0, *ends], ends, strict=False))
    empty = torch.empty(1, read[0].feature_dim)
    content = _Content(
        [replace(bag, features=empty, coords=None, instance_labels=None) for bag in read],
        bounds,
        [bags.source.stamp(slide) for slide in bags.slide_ids],
        torch.cat([bag.features for bag in read]).numpy(),
        [_array(bag.coords) for bag in read],
        [_array(bag.instance_labels) for bag in read],
    )
    return replace(bags, source=_SharedSource(bags.source, ray.put(content)))


def _array(tensor: Tensor | None) -> NDArray[Any] | None:
    return None if tensor is None else tensor.numpy()


def _arrived(reference: Any) -> MemorySource:
    """Read the bags that arrived on this machine."""
    content: _Content = ray.get(reference)
    with warnings.catch_warnings():
        # Shared memory is read-only, of which torch warns; nothing writes to the features of bags.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        bags = [
            replace(
                bag,
                features=torch.from_numpy(content.features[first:end]),
                coords=None if coords is None else torch.from_numpy(coords),
                instance_labels=None if labels is None else torch.from_numpy(labels),
            )
            for bag, (first, end), coords, labels in zip(
                content.bags, content.bounds, content.coords, content.instance_labels, strict=True
            )
        ]
    return MemorySource(bags, content.stamps)
