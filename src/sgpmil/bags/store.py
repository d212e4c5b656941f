"""A packed store: all bags of a data set in one memory-mapped matrix.

Feature files of slides keep one chunk an instance, which makes them slow to read on network
disks. A packed store is read at the speed of the disk, and only the rows that are needed. It is a
folder:

====================  ===========================================================
`features.npy`        instances of all slides end to end, float16 or float32
`coords.npy`          their corners in level-0 pixels, where any slide has them
`instance_labels.npy` their classes, where any slide has them
`index.json`          the rows of each slide, its case and label, and its source
====================  ===========================================================

`StoreReader` reads batches faster than the memory map does: a page fault every few kilobytes, and
as many for fresh memory, cost more than the disk.
"""

import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import regular_file
from sgpmil.bags.readers.raw import BagHeader
from sgpmil.bags.readers.stored_values import FARTHEST
from sgpmil.bags.sources import find_slide
from sgpmil.bags.tables import listed
from sgpmil.bags.target import Label, Target, read_target
from sgpmil.errors import BagError, damage_as

INDEX_NAME = "index.json"
"""Name of the file that makes a folder a packed store."""

_KIND = "sgpmil-packed-bags"
_VERSION = 2
_READERS = 4
_MOST_ROWS = 2**40
_MOST_BYTES = 2**30
"""Bytes of one call: systems read no more than two gibibytes at a time."""


@dataclass(frozen=True, slots=True)
class PackedSlide:
    """One slide of a packed store.

    Args:
        slide_id: Name of the slide.
        case_id: Patient it comes from.
        label: Its label, where known.
        num_instances: Number of its rows.
        patch_size: Side of an instance in level-0 pixels, where known.
        encoder: Name of the patch encoder, where known.
        magnification: Magnification of the instances, where known.
        has_coords: Whether it has coordinates; where not, its rows of them are zero.
        has_instance_labels: Whether it has instance labels; where not, its rows are zero.
        stamp: Stamp of its source when it was packed; it changes with the content.
    """

    slide_id: str
    case_id: str
    label: Label | None
    num_instances: int
    patch_size: int | None
    encoder: str | None
    magnification: float | None
    has_coords: bool
    has_instance_labels: bool
    stamp: str


@dataclass(frozen=True, slots=True)
class LeftOutSlide:
    """A slide that was not packed because it could not be used."""

    slide_id: str
    stamp: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """The index of a packed store.

    Args:
        dtype: Data type of the features: "float16" or "float32".
        feature_dim: Number of features of an instance.
        target: Meaning of the labels.
        slides: Slides in the order of their rows.
        left_out: Slides that could not be used.
    """

    dtype: str
    feature_dim: int
    target: Target
    slides: tuple[PackedSlide, ...]
    left_out: tuple[LeftOutSlide, ...] = ()

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of all slides, those that could not be used last."""
        packed = [slide.slide_id for slide in self.slides]
        return (*packed, *(slide.slide_id for slide in self.left_out))

    @property
    def num_rows(self) -> int:
        """Number of instances of all slides."""
        return sum(slide.num_instances for slide in self.slides)

    def to_json(self) -> str:
        """Write the index as JSON."""
        content = {"kind": _KIND, "version": _VERSION, **asdict(self)}
        return json.dumps(content | {"target": self.target.to_json()}, indent=1)

    @staticmethod
    def from_json(text: str) -> "StoreIndex":
        """Read an index.

        Raises:
            ValueError: It is not such an index, or of a later version.
        """
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("kind") != _KIND:
            raise ValueError("not the index of a packed store")
        if content.get("version") not in range(1, _VERSION + 1):
            raise ValueError(f"version {content.get('version')} instead of {_VERSION}")
        try:
            index = StoreIndex(
                dtype=str(content["dtype"]),
                feature_dim=int(content["feature_dim"]),
                target=read_target(content),
                slides=tuple(_slide(entry) for entry in content["slides"]),
                left_out=tuple(
                    LeftOutSlide(**_of_right_kinds(entry)) for entry in content["left_out"]
                ),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"a field is missing or wrong: {error}") from error
        if index.dtype not in ("float16", "float32") or not index.slides:
            raise ValueError(f"{len(index.slides)} slides of type {index.dtype}")
        counts = Counter(index.slide_ids)
        repeated = [slide_id for slide_id, count in counts.items() if count > 1]
        if repeated:
            raise ValueError(f"{len(repeated)} slides more than once: {listed(repeated)}")
        labels = {slide.label for slide in index.slides} - {None, *range(index.target.num_outputs)}
        if labels:
            raise ValueError(f"the label {next(iter(labels))}, which is no class of the store")
        return index


_KINDS: dict[str, tuple[type, ...]] = {
    "slide_id": (str,),
    "case_id": (str,),
    "label": (int, NoneType),
    "num_instances": (int,),
    "patch_size": (int, NoneType),
    "encoder": (str, NoneType),
    "magnification": (int, float, NoneType),
    "has_coords": (bool,),
    "has_instance_labels": (bool,),
    "stamp": (str,),
    "reason": (str,),
}
"""Kinds of JSON value that each field of a slide may have."""


def _slide(entry: dict[str, Any]) -> PackedSlide:
    slide = PackedSlide(**_of_right_kinds(entry))
    if not 1 <= slide.num_instances <= _MOST_ROWS:
        raise ValueError(f"{slide.num_instances} instances in '{slide.slide_id}'")
    if slide.patch_size is not None and not 1 <= slide.patch_size <= FARTHEST:
        raise ValueError(f"patches of {slide.patch_size} px in '{slide.slide_id}'")
    return slide


def _of_right_kinds(entry: dict[str, Any]) -> dict[str, Any]:
    for name, value in entry.items():
        if not isinstance(value, _KINDS.get(name, ())):
            raise TypeError(f"{name} is {value!r}"[:80])
    return entry


class PackedStore:
    """An opened packed store, a source of bags.

    Open one with `PackedStore.open`.

    Args:
        path: Folder of the store.
        index: Its index.
    """

    def __init__(self, path: Path, index: StoreIndex) -> None:
        self.path = path
        self.index = index
        bounds = np.cumsum([0, *(slide.num_instances for slide in index.slides)]).tolist()
        self._rows = {
            s.slide_id: slice(bounds[i], bounds[i + 1]) for i, s in enumerate(index.slides)
        }
        self._slides = {slide.slide_id: slide for slide in index.slides}
        any_coords = any(slide.has_coords for slide in index.slides)
        any_labels = any(slide.has_instance_labels for slide in index.slides)
        self._features = self._mapped("features", index.dtype, index.feature_dim)
        self._coords = self._mapped("coords", "int64", 2) if any_coords else None
        self._labels = self._mapped("instance_labels", "int64") if any_labels else None

    @staticmethod
    def open(path: Path) -> "PackedStore":
        """Open a packed store.

        Raises:
            BagError: There is none, or it is damaged or truncated.
        """
        with damage_as(BagError, "a packed store", path, "Pack the bags again."):
            index = StoreIndex.from_json((path / INDEX_NAME).read_text(encoding="utf-8"))
            return PackedStore(path, index)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers open the store themselves: pickling a memory map would copy the whole of it.
        return PackedStore.open, (self.path,)

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        return tuple(self._slides)

    def read(self, slide_id: str) -> Bag:
        """Read a bag.

        Its features keep their stored type, float16 or float32, and stay in the memory-mapped file.
        They were checked to be finite when they were packed; `checked` does it again.
        """
        slide, rows = self._slide(slide_id), self._rows[slide_id]
        return Bag(
            features=torch.from_numpy(self._features[rows]),
            slide_id=slide_id,
            case_id=slide.case_id,
            label=slide.label,
            coords=torch.from_numpy(np.array(self._coords[rows]))
            if slide.has_coords and self._coords is not None
            else None,
            patch_size=slide.patch_size,
            instance_labels=torch.from_numpy(np.array(self._labels[rows]))
            if slide.has_instance_labels and self._labels is not None
            else None,
            is_finite=True,
        )

    def checked(self, slide_id: str) -> Bag:
        """Read a bag whole, to find damage since it was packed.

        Raises:
            BagError: A feature is NaN or infinite.
        """
        try:
            return replace(self.read(slide_id), is_finite=False)
        except BagError as error:
            raise type(error)(f"{self.path}: {error} Pack the bags again.") from None

    def rows(self, slide_id: str) -> slice:
        """Return the rows of the matrix that belong to a slide."""
        return find_slide(self._rows, slide_id, f" ({self.path})")

    def header(self, slide_id: str) -> BagHeader:
        """Return the size and description of a bag."""
        slide = self._slide(slide_id)
        return BagHeader(
            slide.num_instances,
            self.index.feature_dim,
            self.index.dtype,
            encoder=slide.encoder,
            magnification=slide.magnification,
            patch_size=slide.patch_size,
            has_coords=slide.has_coords,
            has_instance_labels=slide.has_instance_labels,
        )

    def stamp(self, slide_id: str) -> str:
        """Return the stamp of the bag's source when it was packed."""
        return self._slide(slide_id).stamp

    def dataset(self) -> BagDataset:
        """Return the data set that was packed, with its labels."""
        slides = self.index.slides
        return BagDataset(
            source=self,
            slide_ids=self.slide_ids,
            case_ids=tuple(slide.case_id for slide in slides),
            labels=tuple(slide.label for slide in slides),
            target=self.index.target,
        )

    def matches(self, dataset: BagDataset) -> bool:
        """Return whether the store still holds a data set: the same slides, none changed."""
        packed = {slide.slide_id: slide.stamp for slide in self.index.slides}
        packed |= {slide.slide_id: slide.stamp for slide in self.index.left_out}
        return packed == {s: dataset.source.stamp(s) for s in dataset.slide_ids}

    def _slide(self, slide_id: str) -> PackedSlide:
        return find_slide(self._slides, slide_id, f" ({self.path})")

    def _mapped(self, name: str, dtype: str, *row: int) -> NDArray[Any]:
        path = self.path / f"{name}.npy"
        with damage_as(BagError, "a whole array", path, "Pack the bags again."):
            # Copy-on-write: torch warns of memory that it must not write to. Nobody writes.
            array = np.load(regular_file(path), mmap_mode="c", allow_pickle=False)
        expected = (self.index.num_rows, *row)
        if array.shape != expected or array.dtype != np.dtype(dtype):
            raise BagError(
                f"Expected an array of shape {expected} and type {dtype}, as the index says, but "
                f"got {array.shape} and {array.dtype} ({path}). Pack the bags again."
            )
        return array


def is_store(path: Path) -> bool:
    """Return whether a folder is a packed store."""
    return (path / INDEX_NAME).is_file() and (path / "features.npy").is_file()


class StoreReader:
    """A reader of bags packed end to end, into memory that is used again.

    A batch stays valid until `num_buffers` more are read; its features are then overwritten.

    Args:
        store: The store.
        num_buffers: Number of batches that are valid at a time.
        pinned: Whether to pin the memory, from which a GPU copies batches on its own.
    """

    def __init__(self, store: PackedStore, *, num_buffers: int = 4, pinned: bool = False) -> None:
        self.store = store
        self.num_buffers = num_buffers
        self._pinned = pinned
        # A disk works on several requests at a time.
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store")
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * num_buffers
        self._next = 0
        self._checked: set[str] = set()
        self._dtype = np.dtype(store.index.dtype)
        self._row_bytes = store.index.feature_dim * self._dtype.itemsize
        self._path = store.path / "features.npy"
        self._header = self._path.stat().st_size - store.index.num_rows * self._row_bytes

    def pack(self, bags: Sequence[Bag]) -> BagBatch:
        """Read bags of the store packed end to end.

        Args:
            bags: Bags of the store; their features are not read through the memory map.

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
        self._check_once(bags, features)
        return BagBatch.pack(bags, features)

    def _check_once(self, bags: Sequence[Bag], features: Tensor) -> None:
        """Refuse what became NaN or infinite since it was packed, once a slide."""
        start = 0
        for bag in bags:
            end = start + bag.num_instances
            if bag.slide_id not in self._checked:
                replace(bag, features=features[start:end], is_finite=False)
                self._checked.add(bag.slide_id)
            start = end

    def _place(self, slide_id: str) -> tuple[int, int]:
        """Return where in the file a bag begins, and how many bytes it has."""
        rows = self.store.rows(slide_id)
        offset = self._header + rows.start * self._row_bytes
        return offset, (rows.stop - rows.start) * self._row_bytes

    def _buffer(self, num_bytes: int) -> Tensor:
        """Return the memory that was used longest ago, enlarged where it is too small."""
        place, self._next = self._next, (self._next + 1) % len(self._buffers)
        if len(self._buffers[place]) < num_bytes:
            # A quarter more, or every slightly larger batch would take new memory.
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
