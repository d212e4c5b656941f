"""Writing a `.npy` file row by row, without knowing the number of rows beforehand."""

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArrayWriter"]


class ArrayWriter:
    """A `.npy` file that grows along its first axis; numpy can map it into memory once closed.

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
