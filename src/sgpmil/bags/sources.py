"""Where bags come from: files, memory or a packed store, behind one small protocol."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from sgpmil.bags.bag import Bag
from sgpmil.bags.readers import BagFile, BagHeader, peek_bag, read_raw
from sgpmil.errors import BagError

__all__ = ["BagSource", "FolderSource", "MemorySource"]

_Item = TypeVar("_Item")


@runtime_checkable
class BagSource(Protocol):
    """Bags by the names of their slides, read when asked for."""

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        ...

    def read(self, slide_id: str) -> Bag:
        """Read a bag."""
        ...

    def header(self, slide_id: str) -> BagHeader:
        """Say how large a bag is and what else is known of it, without reading it."""
        ...

    def stamp(self, slide_id: str) -> str:
        """Return a text that changes when the bag's content does."""
        ...


class FolderSource:
    """Bags of files, one file a bag.

    Args:
        files: The files; their slides differ.
    """

    def __init__(self, files: Sequence[BagFile]) -> None:
        self._files = {file.slide_id: file for file in files}
        self._headers: dict[str, BagHeader] = {}

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        return tuple(self._files)

    def read(self, slide_id: str) -> Bag:
        """Read a bag from its file.

        Raises:
            BagError: The slide is unknown, or its file is damaged, empty or not finite.
        """
        file = self._file(slide_id)
        return read_raw(file.path, file.format).to_bag(slide_id, file.path)

    def header(self, slide_id: str) -> BagHeader:
        """Read the shape and attributes of a file, once.

        Raises:
            BagError: The slide is unknown, or its file is damaged.
        """
        if slide_id not in self._headers:
            file = self._file(slide_id)
            self._headers[slide_id] = peek_bag(file.path, file.format)
        return self._headers[slide_id]

    def stamp(self, slide_id: str) -> str:
        """Return size and time of change of a file.

        Raises:
            BagError: The slide is unknown, or its file is gone.
        """
        path = self._file(slide_id).path
        try:
            status = path.stat()
        except OSError as error:
            raise BagError(
                f"Expected a bag file, but got '{error.strerror}' ({path}). Put it back."
            ) from error
        return f"{status.st_size}-{status.st_mtime_ns}"

    def path(self, slide_id: str) -> Path:
        """Return the file of a slide."""
        return self._file(slide_id).path

    def _file(self, slide_id: str) -> BagFile:
        return _known(self._files, slide_id)


class MemorySource:
    """Bags held in memory.

    Args:
        bags: The bags; their slides differ.
        stamps: What the bags' original source said of their content, where they were read.
    """

    def __init__(self, bags: Sequence[Bag], stamps: Sequence[str] | None = None) -> None:
        self._bags = {bag.slide_id: bag for bag in bags}
        self._stamps = dict(zip(self._bags, stamps or (), strict=False))

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        return tuple(self._bags)

    def read(self, slide_id: str) -> Bag:
        """Return a bag.

        Raises:
            BagError: The slide is unknown.
        """
        return _known(self._bags, slide_id)

    def header(self, slide_id: str) -> BagHeader:
        """Say how large a bag is.

        Raises:
            BagError: The slide is unknown.
        """
        bag = self.read(slide_id)
        return BagHeader(
            bag.num_instances,
            bag.feature_dim,
            dtype=str(bag.features.dtype).removeprefix("torch."),
            patch_size=bag.patch_size,
            has_coords=bag.coords is not None,
            has_instance_labels=bag.instance_labels is not None,
        )

    def stamp(self, slide_id: str) -> str:
        """Return a digest of a bag's numbers, or the stamp of where it was read."""
        if slide_id not in self._stamps:
            bag = self.read(slide_id)
            digest = hashlib.sha256()
            for tensor in (bag.features, bag.coords, bag.instance_labels):
                if tensor is not None:
                    digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            self._stamps[slide_id] = digest.hexdigest()
        return self._stamps[slide_id]


def _known(items: dict[str, _Item], slide_id: str) -> _Item:
    if slide_id not in items:
        raise BagError(
            f"Expected one of {len(items)} slides, but got '{slide_id}', which is not among them. "
            "Check its spelling."
        )
    return items[slide_id]
