"""A packed store: all bags of a data set in one memory-mapped matrix.

Feature files of slides keep one chunk an instance, which makes them slow to read on network
disks; a packed store is read at the speed of the disk and never as a whole. It is a folder:

====================  ===========================================================
`features.npy`        instances of all slides end to end, float16 or float32
`coords.npy`          their corners in level-0 pixels, where any slide has them
`instance_labels.npy` their classes, where any slide has them
`index.json`          the rows of each slide, its case and label, and its source
====================  ===========================================================
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.readers import BagHeader
from sgpmil.bags.store_index import PackedSlide, StoreIndex
from sgpmil.errors import BagError

__all__ = ["INDEX_NAME", "PackedStore", "is_store"]

INDEX_NAME = "index.json"
"""Name of the file that makes a folder a packed store."""


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
        try:
            index = StoreIndex.from_json((path / INDEX_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BagError(
                f"Expected a packed store, but got '{error}' ({path}). Pack the bags again."
            ) from error
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

        Its features are as they are stored, float16 or float32, and lie in the memory-mapped file:
        nothing is copied. They were found to be finite when they were packed.

        Raises:
            BagError: The slide is unknown.
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

    def rows(self, slide_id: str) -> slice:
        """Say which rows of the matrix are a slide's.

        Raises:
            BagError: The slide is unknown.
        """
        return self._rows[self._slide(slide_id).slide_id]

    def header(self, slide_id: str) -> BagHeader:
        """Say how large a bag is and what else is known of it.

        Raises:
            BagError: The slide is unknown.
        """
        return self._slide(slide_id).header(self.index.feature_dim, self.index.dtype)

    def stamp(self, slide_id: str) -> str:
        """Return what the source of the bag said of its content when it was packed."""
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
        """Say whether the store still holds a data set: the same slides, none changed."""
        packed = {slide.slide_id: slide.stamp for slide in self.index.slides}
        packed |= {slide.slide_id: slide.stamp for slide in self.index.left_out}
        return packed == {s: dataset.source.stamp(s) for s in dataset.slide_ids}

    def _slide(self, slide_id: str) -> PackedSlide:
        if slide_id not in self._slides:
            raise BagError(
                f"Expected one of the {len(self._slides)} slides of the store, but got "
                f"'{slide_id}' ({self.path}). Check its spelling."
            )
        return self._slides[slide_id]

    def _mapped(self, name: str, dtype: str, *row: int) -> NDArray[Any]:
        path = self.path / f"{name}.npy"
        try:
            # Copy-on-write: torch warns of memory that it must not write to. Nobody writes.
            array = np.load(path, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BagError(
                f"Expected a whole array, but got '{error}' ({path}). Pack the bags again."
            ) from error
        expected = (self.index.num_rows, *row)
        if array.shape != expected or array.dtype != np.dtype(dtype):
            raise BagError(
                f"Expected an array of shape {expected} and type {dtype}, as the index says, but "
                f"got {array.shape} and {array.dtype} ({path}). Pack the bags again."
            )
        return array


def is_store(path: Path) -> bool:
    """Say whether a folder is a packed store."""
    return (path / INDEX_NAME).is_file() and (path / "features.npy").is_file()
