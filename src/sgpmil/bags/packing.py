"""Packing of a data set into a store, in one pass over its bags."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset, refuse_mixed_dims
from sgpmil.bags.files import remove_leftovers, temporary_sibling, write_text
from sgpmil.bags.readers.raw import BagHeader
from sgpmil.bags.store import (
    INDEX_NAME,
    LeftOutSlide,
    PackedSlide,
    PackedStore,
    StoreIndex,
    is_store,
)
from sgpmil.errors import BagError


def pack_bags(
    dataset: BagDataset,
    path: Path,
    *,
    dtype: Literal["float16", "float32"] | None = None,
    overwrite: bool = False,
    on_bad: Literal["error", "skip"] = "error",
    on_bag: Callable[[str], None] | None = None,
) -> PackedStore:
    """Pack a data set into a store, whole or not at all.

    Args:
        dataset: Bags to pack, read one at a time.
        path: Folder to make.
        dtype: Type of the features; that of the source where it is float16, else float32.
        overwrite: Replace a store that is there already. Another folder is never replaced.
        on_bad: Whether to refuse or to leave out a bag that is damaged, empty or not finite.
        on_bag: Called with the name of each slide that was packed.

    Raises:
        BagError: The path is taken or cannot be written, or a bag is not usable.
    """
    _refuse_taken(path, overwrite)
    remove_leftovers(path)
    temporary = temporary_sibling(path)
    try:
        temporary.mkdir(parents=True)
        index = _write(dataset, temporary, dtype, on_bad, on_bag)
        write_text(temporary / INDEX_NAME, index.to_json())
        _put_in_place(temporary, path)
    except OSError as error:
        raise BagError(
            f"Expected to write a packed store, but got '{error.strerror or error}' ({path}). "
            "Free some space, or choose another folder."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return PackedStore.open(path)


def _refuse_taken(path: Path, overwrite: bool) -> None:
    if is_store(path):
        if not overwrite:
            raise BagError(
                f"Expected a new folder, but there is a packed store already ({path}). "
                "Choose another folder, or replace it with `overwrite=True`."
            )
    elif path.exists() and (path.is_file() or any(path.iterdir())):
        raise BagError(
            f"Expected a new folder, but there are other files already ({path}). "
            "Choose another folder."
        )


def _put_in_place(temporary: Path, path: Path) -> None:
    if not is_store(path):
        temporary.replace(path)
        return
    old = temporary_sibling(path)
    path.replace(old)
    temporary.replace(path)
    shutil.rmtree(old, ignore_errors=True)


def _write(
    dataset: BagDataset,
    folder: Path,
    dtype: Literal["float16", "float32"] | None,
    on_bad: Literal["error", "skip"],
    on_bag: Callable[[str], None] | None,
) -> StoreIndex:
    refuse_mixed_dims(dataset.source, dataset.slide_ids)
    headers = [dataset.source.header(slide_id) for slide_id in dataset.slide_ids]
    chosen = dtype or ("float16" if all(h.dtype == "float16" for h in headers) else "float32")
    slides: list[PackedSlide] = []
    left_out: list[LeftOutSlide] = []
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(ArrayWriter(folder / f"{name}.npy", row, kind))
            for name, row, kind, wanted in (
                ("features", (dataset.feature_dim,), chosen, True),
                ("coords", (2,), "int64", any(h.has_coords for h in headers)),
                ("instance_labels", (), "int64", any(h.has_instance_labels for h in headers)),
            )
            if wanted
        }
        for i, slide_id in enumerate(dataset.slide_ids):
            stamp = dataset.source.stamp(slide_id)
            try:
                bag = dataset[i]
                arrays = _arrays(bag, chosen)
            except BagError as error:
                if on_bad == "error":
                    raise
                left_out.append(LeftOutSlide(slide_id, stamp, str(error)))
                continue
            for name, writer in writers.items():
                writer.append(arrays[name])
            slides.append(_packed_slide(bag, headers[i], stamp))
            if on_bag is not None:
                on_bag(slide_id)
    if not slides:
        raise BagError(
            f"Expected at least one usable bag, but got none of {len(headers)}. "
            f"The first: {left_out[0].reason}"
        )
    return StoreIndex(chosen, dataset.feature_dim, dataset.target, tuple(slides), tuple(left_out))


def _arrays(bag: Bag, dtype: str) -> dict[str, NDArray[Any]]:
    """Return the rows of a bag, with zeros for missing coordinates and instance labels."""
    # An overflow is reported below.
    with np.errstate(over="ignore"):
        features = bag.features.numpy().astype(dtype)
    if dtype == "float16" and not np.isfinite(features).all():
        raise BagError(
            f"Expected features that float16 can hold, but '{bag.slide_id}' has some beyond "
            "65504. Pack as float32."
        )
    count = bag.num_instances
    empty = torch.zeros(count, 2, dtype=torch.int64)
    return {
        "features": features,
        "coords": (empty if bag.coords is None else bag.coords).numpy(),
        "instance_labels": (
            empty[:, 0] if bag.instance_labels is None else bag.instance_labels
        ).numpy(),
    }


def _packed_slide(bag: Bag, header: BagHeader, stamp: str) -> PackedSlide:
    return PackedSlide(
        slide_id=bag.slide_id,
        case_id=bag.case_id,
        label=bag.label,
        num_instances=bag.num_instances,
        patch_size=bag.patch_size,
        encoder=header.encoder,
        magnification=header.magnification,
        has_coords=bag.coords is not None,
        has_instance_labels=bag.instance_labels is not None,
        stamp=stamp,
    )


class ArrayWriter:
    """A `.npy` file that grows along its first axis, until it is closed.

    Args:
        path: File to write.
        row_shape: Shape of a row.
        dtype: Data type of the file.
    """

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: str) -> None:
        self._row_shape = row_shape
        self._dtype = np.dtype(dtype)
        self._rows = 0
        self._file = path.open("wb")
        self._write_header()
        self._header_size = self._file.tell()

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error_type is None:
                self._finish()
        finally:
            self._file.close()

    def append(self, rows: NDArray[Any]) -> None:
        """Write rows at the end."""
        if rows.shape[1:] != self._row_shape:
            raise ValueError(f"rows of shape {rows.shape[1:]} instead of {self._row_shape}")
        np.ascontiguousarray(rows, dtype=self._dtype).tofile(self._file)
        self._rows += len(rows)

    def _finish(self) -> None:
        self._file.seek(0)
        self._write_header()
        if self._file.tell() != self._header_size:
            raise ValueError("the header of the array outgrew its place")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write_header(self) -> None:
        # numpy pads the header so that the first axis may grow to any length in place.
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._rows, *self._row_shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
