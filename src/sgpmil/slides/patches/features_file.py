"""Embeddings of patches as TRIDENT stores them."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from sgpmil.errors import ExtractionError
from sgpmil.shapes import Float
from sgpmil.slides.patches.coords_file import add_coords
from sgpmil.slides.patches.grid import Patches
from sgpmil.slides.patches.hdf5_file import NewHdf5File, set_attributes

__all__ = ["FeatureWriter", "write_features"]

_CHUNK = 2**19
"""Bytes of a chunk, at most."""


class FeatureWriter:
    """Writes the embeddings of a slide as they come, in the order of its patches.

    The file has the datasets `features` and `coords` with TRIDENT's names, types and attributes,
    and both can be appended to as TRIDENT does. TRIDENT makes every row a chunk of its own, which
    is slow to read, for each chunk is looked up and read alone; here a chunk is half a megabyte
    of rows, which no reader notices otherwise. The bytes do not depend on the size of the batches.

    Args:
        path: File to write, whole or not at all.
        patches: The patches.
        dim: Numbers of an embedding.
        dtype: Their type on disk.
        encoder: Name of the encoder.
        attributes: What else to remember of the embeddings, by name.
        coords_attributes: What else to remember of the coordinates, by name.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        patches: Patches,
        *,
        dim: int,
        dtype: str,
        encoder: str,
        attributes: Mapping[str, Any] | None = None,
        coords_attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_patches = len(patches.coords)
        self._new = NewHdf5File(path)
        row = dim * np.dtype(dtype).itemsize
        rows = max(1, min(_CHUNK // max(1, row), self.num_patches))
        # Whole chunks are written, so that the file does not depend on how the rows come.
        self._chunk = np.empty((rows, dim), dtype=dtype)
        self._in_chunk = self._written = 0
        try:
            self._features = self._new.file.create_dataset(
                "features",
                shape=(self.num_patches, dim),
                dtype=dtype,
                maxshape=(None, dim),
                chunks=(rows, dim),
            )
            named = {"name": patches.slide_id, "savetodir": self._new.path.parent.name}
            set_attributes(self._features, {**(attributes or {}), **named, "encoder": encoder})
            add_coords(self._new, patches, coords_attributes)
            self._new.check()
        except BaseException:
            self._new.drop()
            raise

    def append(self, features: Float[np.ndarray, "K D"]) -> None:
        """Write the embeddings of the next patches.

        Args:
            features: A row for each patch.

        Raises:
            ExtractionError: They are too many, of another length, or not finite on disk.
            OSError: They cannot be written; drop the file then.
        """
        rows, dim = self._chunk.shape
        total = self._written + self._in_chunk + len(features)
        if features.shape[1] != dim or total > self.num_patches:
            raise ExtractionError(
                f"Expected at most {self.num_patches} embeddings of {dim} numbers, but got "
                f"{total} of {features.shape[1]} ('{self._new.path}'). Check the encoder."
            )
        with np.errstate(over="ignore"):
            stored = features.astype(self._chunk.dtype)
        if not np.isfinite(stored).all():
            found = "numbers beyond float16" if np.isfinite(features).all() else "NaN or infinity"
            raise ExtractionError(
                f"Expected finite embeddings, but the encoder gave {found} ('{self._new.path}'). "
                "Store them as float32, or encode with float32."
            )
        while len(stored):
            part, stored = np.split(stored, [rows - self._in_chunk])
            self._chunk[self._in_chunk : self._in_chunk + len(part)] = part
            self._in_chunk += len(part)
            if self._in_chunk == rows:
                self._flush()

    def finish(self) -> None:
        """Give the file its name.

        Raises:
            ExtractionError: Embeddings of some patches are missing.
            OSError: Something could not be written; then nothing is left behind.
        """
        found = self._written + self._in_chunk
        if found != self.num_patches:
            self.drop()
            raise ExtractionError(
                f"Expected {self.num_patches} embeddings, but got {found} ('{self._new.path}'). "
                "Extract the slide again."
            )
        try:
            self._flush()
        except OSError:
            self.drop()
            raise
        self._new.finish()

    def drop(self) -> None:
        """Remove what was written."""
        self._new.drop()

    def _flush(self) -> None:
        end = self._written + self._in_chunk
        if end > self._written:
            self._features[self._written : end] = self._chunk[: self._in_chunk]
            self._written, self._in_chunk = end, 0
            self._new.check()


def write_features(
    path: str | os.PathLike[str],
    features: Float[np.ndarray, "N D"],
    patches: Patches,
    *,
    encoder: str,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Write the embeddings of a slide at once; see `FeatureWriter`.

    Args:
        path: File to write, whole or not at all.
        features: A row for each patch, as it is to be stored.
        patches: The patches.
        encoder: Name of the encoder.
        attributes: What else to remember of the embeddings, by name.

    Raises:
        ExtractionError: The embeddings are not one for each patch, or not finite.
        OSError: The file cannot be written.
    """
    writer = FeatureWriter(
        path,
        patches,
        dim=features.shape[1],
        dtype=features.dtype.name,
        encoder=encoder,
        attributes=attributes,
    )
    try:
        writer.append(features)
    except BaseException:
        writer.drop()
        raise
    writer.finish()
