"""Files of patches: coordinates and embeddings, in TRIDENT's layout.

::

    contours_geojson/<slide>.geojson
    contours/<slide>.png                                    previews
    20x_256px_0px_overlap/patches/<slide>_patches.h5
    20x_256px_0px_overlap/features_<encoder>/<slide>.h5

Patches of a size in microns per pixel have folders of their own: `0.5mpp_256px_0px_overlap`.
Coordinate files of CLAM are read too.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sgpmil.bags.readers.own_data import own_dataset, refuse_missing_data
from sgpmil.bags.readers.stored_values import (
    FARTHEST,
    number_attribute,
    positive_attribute,
    text_attribute,
    whole_coordinates,
)
from sgpmil.errors import ExtractionError
from sgpmil.shapes import Float
from sgpmil.slides.patches.grid import Patches, PatchSettings
from sgpmil.slides.patches.hdf5_file import NewHdf5File, set_attributes


@dataclass(frozen=True, slots=True)
class ExtractionFolder:
    """The folder of an extraction, with the names of the files in it.

    Args:
        root: The folder.
        patches_folder: The folder in it for patches of one size, resolution and overlap.

    Example:
        >>> folder = ExtractionFolder.of("job", PatchSettings(magnification=2.5))
        >>> folder.features("uni_v1", "TCGA-01.svs").relative_to(folder.root).as_posix()
        '2.5x_256px_0px_overlap/features_uni_v1/TCGA-01.svs.h5'
    """

    root: Path
    patches_folder: Path

    @classmethod
    def of(cls, root: str | os.PathLike[str], settings: PatchSettings) -> "ExtractionFolder":
        """Name the folder for patches of these settings."""
        if settings.magnification is not None:
            scale = f"{settings.magnification:.10g}x"
        else:
            scale = f"{settings.mpp:.10g}mpp"
        name = f"{scale}_{settings.size}px_{settings.overlap}px_overlap"
        return cls(Path(root), Path(root) / name)

    @property
    def contours_folder(self) -> Path:
        """Folder of the contours."""
        return self.root / "contours_geojson"

    @property
    def previews_folder(self) -> Path:
        """Folder of the previews."""
        return self.root / "contours"

    @property
    def coords_folder(self) -> Path:
        """Folder of the coordinates."""
        return self.patches_folder / "patches"

    def features_folder(self, encoder: str) -> Path:
        """Return the folder of an encoder's embeddings.

        Args:
            encoder: Its name; characters that a folder cannot have become dashes.
        """
        return self.patches_folder / f"features_{re.sub(r'[^A-Za-z0-9._+-]+', '-', encoder)}"

    def contours(self, slide_id: str) -> Path:
        """Return the file of a slide's contours."""
        return self.contours_folder / f"{slide_id}.geojson"

    def preview(self, slide_id: str) -> Path:
        """Return the file of a slide's preview."""
        return self.previews_folder / f"{slide_id}.png"

    def coords(self, slide_id: str) -> Path:
        """Return the file of a slide's coordinates."""
        return self.coords_folder / f"{slide_id}_patches.h5"

    def features(self, encoder: str, slide_id: str) -> Path:
        """Return the file of a slide's embeddings."""
        return self.features_folder(encoder) / f"{slide_id}.h5"


_ROWS = 4096
"""Rows of a chunk: 64 KiB."""


def write_coords(
    path: str | os.PathLike[str], patches: Patches, *, attributes: Mapping[str, Any] | None = None
) -> None:
    """Write the coordinates of a slide's patches, as TRIDENT does.

    The dataset `coords` (int64, a row (x, y) for each patch) has the geometry in its attributes.
    The same patches give the same bytes.

    Raises:
        OSError: The file cannot be written.
    """
    with NewHdf5File(path) as new:
        add_coords(new, patches, attributes)


def add_coords(
    new: NewHdf5File, patches: Patches, attributes: Mapping[str, Any] | None = None
) -> None:
    """Write the dataset `coords` into a new file."""
    width, height = (None, None) if patches.slide_size is None else patches.slide_size
    dataset = new.file.create_dataset(
        "coords",
        data=patches.coords.astype(np.int64, copy=False),
        maxshape=(None, 2),
        chunks=(max(1, min(_ROWS, len(patches.coords))), 2),
    )
    set_attributes(
        dataset,
        {
            **(attributes or {}),
            "patch_size": patches.size,
            "patch_size_level0": patches.side,
            "level0_magnification": _whole(patches.level0_magnification),
            "target_magnification": _whole(patches.target_magnification),
            "overlap": patches.overlap,
            "name": patches.slide_id,
            # Not the whole path: equal files, whatever the folder, and no names of users in them.
            "savetodir": new.path.parent.name,
            "level0_width": width,
            "level0_height": height,
        },
    )


def read_coords(path: str | os.PathLike[str]) -> Patches:
    """Read the coordinates of a slide's patches, from a file of this package, TRIDENT or CLAM.

    CLAM stores the side in pixels of a level, and the level's downsample. (`custom_downsample`,
    of old files, makes the encoded picture smaller, not the patch.)

    Raises:
        ExtractionError: The file is missing or damaged, or does not say how large its patches are.
    """
    file = Path(path)
    try:
        with h5py.File(file, "r", locking=False) as content:
            dataset = own_dataset(content, "coords", file)
            if dataset is None:
                raise KeyError("'coords' is no dataset")
            refuse_missing_data(dataset, file)
            stored, attributes = np.asarray(dataset[()]), dataset.attrs
            count = 0 if stored.size == 0 else stored.shape[-2] if stored.ndim > 1 else 1
            coords = whole_coordinates(stored, count, file)
            return _patches(coords, attributes, file)
    except ExtractionError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        if isinstance(error, FileNotFoundError):
            reason = "there is none"
        else:
            reason = f"it cannot be read ({' '.join(str(error).split())})"
        raise ExtractionError(
            f"Expected coordinates of patches at '{file}', but {reason}. Remove it and place the "
            "patches again."
        ) from error


def _patches(coords: np.ndarray, attributes: h5py.AttributeManager, file: Path) -> Patches:
    size = number_attribute(attributes, "patch_size")
    level0 = positive_attribute(attributes, "level0_magnification")
    target = positive_attribute(attributes, "target_magnification")
    side = number_attribute(attributes, "patch_size_level0")
    downsample = number_attribute(attributes, "downsample")
    if side is None and size is not None:
        if level0 and target:
            side = size * level0 // target
        elif downsample:
            side = round(size * downsample)
            size /= number_attribute(attributes, "custom_downsample") or 1
    if size is None or side is None or not 1 <= size <= FARTHEST or not 1 <= side <= FARTHEST:
        raise ExtractionError(
            "Expected the attributes 'patch_size' and 'patch_size_level0' (or CLAM's 'downsample') "
            f"on 'coords' in '{file}', but got {sorted(attributes)}. Place the patches again."
        )
    overlap = number_attribute(attributes, "overlap")
    if overlap is not None and not -FARTHEST <= overlap <= FARTHEST:
        overlap = None
    return Patches(
        coords=coords,
        size=round(size),
        side=round(side),
        overlap=None if overlap is None else round(overlap),
        level0_magnification=level0,
        target_magnification=target,
        slide_size=_slide_size(attributes),
        slide_id=text_attribute(attributes, "name") or file.stem.removesuffix("_patches"),
    )


def _slide_size(attributes: h5py.AttributeManager) -> tuple[int, int] | None:
    width = positive_attribute(attributes, "level0_width")
    height = positive_attribute(attributes, "level0_height")
    if width is not None and height is not None:
        return round(width), round(height)
    # CLAM: the size of the level that patches are read from. Only level 0 is known exactly.
    level_size = np.asarray(attributes.get("level_dim", ()))
    if number_attribute(attributes, "patch_level") == 0 and level_size.shape == (2,):
        return int(level_size[0]), int(level_size[1])
    return None


def _whole(number: float | None) -> int | float | None:
    return int(number) if number is not None and float(number).is_integer() else number


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
        attributes: Other attributes of the embeddings, by name.
        coords_attributes: Other attributes of the coordinates, by name.

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
        """Complete the file, and give it its name.

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
