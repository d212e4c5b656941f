"""Sources of bags: files, memory or a packed store, behind one small protocol."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from sgpmil.bags.bag import Bag
from sgpmil.bags.files import content_digest
from sgpmil.bags.readers.formats import BagFile
from sgpmil.bags.readers.raw import BagHeader
from sgpmil.errors import BagError

_Item = TypeVar("_Item")


@runtime_checkable
class BagSource(Protocol):
    """Bags by the names of their slides, read on demand.

    Every method raises a `BagError` where the slide is unknown, or its file is missing, damaged,
    empty or not finite.
    """

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        ...

    def read(self, slide_id: str) -> Bag:
        """Read a bag."""
        ...

    def header(self, slide_id: str) -> BagHeader:
        """Return the size and description of a bag, without reading it."""
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
        # By size and time of change, so that a file is read for it once.
        self._digests: dict[str, tuple[tuple[int, int], str]] = {}

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        return tuple(self._files)

    def read(self, slide_id: str) -> Bag:
        """Read a bag from its file."""
        file = find_slide(self._files, slide_id)
        return file.read().to_bag(slide_id, file.path)

    def header(self, slide_id: str) -> BagHeader:
        """Read the shape and attributes of a file, once."""
        if slide_id not in self._headers:
            self._headers[slide_id] = find_slide(self._files, slide_id).peek()
        return self._headers[slide_id]

    def stamp(self, slide_id: str) -> str:
        """Return a digest of a file's size and content; see `content_digest`."""
        path = find_slide(self._files, slide_id).path
        try:
            status = path.stat()
            known = status.st_size, status.st_mtime_ns
            if self._digests.get(slide_id, (None, ""))[0] != known:
                self._digests[slide_id] = known, content_digest(path)
        except OSError as error:
            raise BagError(
                f"Expected a bag file, but got '{error.strerror}' ({path}). Put it back."
            ) from error
        return self._digests[slide_id][1]


class PartSource:
    """Some of the bags of a source, through which the others cannot be read.

    Args:
        source: The source.
        slide_ids: The slides that can be read.
    """

    def __init__(self, source: BagSource, slide_ids: Sequence[str]) -> None:
        self._source = source
        self._slide_ids = dict.fromkeys(slide_ids, True)

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        return tuple(self._slide_ids)

    def read(self, slide_id: str) -> Bag:
        """Read a bag."""
        find_slide(self._slide_ids, slide_id)
        return self._source.read(slide_id)

    def header(self, slide_id: str) -> BagHeader:
        """Return the size and description of a bag."""
        find_slide(self._slide_ids, slide_id)
        return self._source.header(slide_id)

    def stamp(self, slide_id: str) -> str:
        """Return a text that changes when the bag's content does."""
        find_slide(self._slide_ids, slide_id)
        return self._source.stamp(slide_id)


class MemorySource:
    """Bags held in memory.

    Args:
        bags: The bags; their slides differ.
        stamps: Stamps of the source that the bags were read from.
        headers: Headers of the same source, for what a bag itself does not state.
    """

    def __init__(
        self,
        bags: Sequence[Bag],
        stamps: Sequence[str] | None = None,
        headers: Sequence[BagHeader] | None = None,
    ) -> None:
        self._bags = {bag.slide_id: bag for bag in bags}
        self._stamps = dict(zip(self._bags, stamps or (), strict=False))
        self._headers = dict(zip(self._bags, headers or (), strict=False))

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides."""
        return tuple(self._bags)

    def read(self, slide_id: str) -> Bag:
        """Return a bag."""
        return find_slide(self._bags, slide_id)

    def header(self, slide_id: str) -> BagHeader:
        """Return the size of a bag."""
        bag, origin = self.read(slide_id), self._headers.get(slide_id)
        return BagHeader(
            bag.num_instances,
            bag.feature_dim,
            dtype=str(bag.features.dtype).removeprefix("torch."),
            encoder=None if origin is None else origin.encoder,
            magnification=None if origin is None else origin.magnification,
            patch_size=bag.patch_size,
            has_coords=bag.coords is not None,
            has_instance_labels=bag.instance_labels is not None,
        )

    def stamp(self, slide_id: str) -> str:
        """Return a digest of a bag's numbers, or the stamp of its original source."""
        if slide_id not in self._stamps:
            bag = self.read(slide_id)
            digest = hashlib.sha256()
            for tensor in (bag.features, bag.coords, bag.instance_labels):
                if tensor is not None:
                    digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            self._stamps[slide_id] = digest.hexdigest()
        return self._stamps[slide_id]


def find_slide(items: Mapping[str, _Item], slide_id: str, where: str = "") -> _Item:
    """Return the item of a slide.

    Raises:
        BagError: The slide is unknown; the message ends with `where`.
    """
    if slide_id not in items:
        raise BagError(
            f"Expected one of {len(items)} slides, but got '{slide_id}', which is not among them"
            f"{where}. Check its spelling."
        )
    return items[slide_id]
