"""Maps of scores as pyramidal TIFF, so that other viewers open them."""

import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.errors import ExplanationError
from sgpmil.explanation.maps import ScoreMap
from sgpmil.shapes import Float
from sgpmil.slides.optional_part import require_package

_TILE = 256
"""Side of a tile; the pyramid ends with a level that fits into one."""
_BIG = 2**32 - 2**25
"""Bytes from which a file may outgrow the 4 GiB of a plain TIFF."""
_MICRONS_PER_CM = 1e4


def write_score_tiff(
    path: str | os.PathLike[str],
    layers: Mapping[str, ScoreMap],
    *,
    mpp: float | None = None,
    outside: float = float("nan"),
) -> None:
    """Write maps of one slide as the channels of a float32 pyramid.

    An OME-TIFF, for that is what viewers read numbers from: its smaller levels are in the SubIFDs
    of the first, as the OME-TIFF specification asks and as Bio-Formats (from version 6; so QuPath,
    Fiji, OMERO), napari and tifffile read them. Each level halves the one before; a pixel is the
    mean of those beneath it that have a score. Tiles are compressed with zlib and without a
    predictor, which all of them can undo. BigTIFF where 4 GiB might not do.

    OpenSlide, which knows colours of eight bits only, opens the file but cannot read its pixels;
    this is so of every TIFF of floating-point numbers. Programs built on it show the tiles of
    `write_qupath_geojson` or `write_tiatoolbox_overlay` instead.

    Pixels without a patch are NaN, which QuPath leaves out of its histogram. Some viewers
    choose their contrast from the extremes and stumble over NaN: give these 0 as `outside`.

    Args:
        path: File to write (.ome.tiff); replaced whole where it exists.
        layers: The maps by their names ("attention mean"), all of the same pixels.
        mpp: Microns per level-0 pixel, where known: a map pixel is then `mpp * downsample`
            microns wide, and the map's corner is at its place on the slide.
        outside: Value of pixels without a patch.

    Raises:
        ExplanationError: There is no map, the maps differ in their pixels, or `mpp` is no size.
        MissingPartError: The package tifffile is not installed.
    """
    require_package("tifffile")
    import tifffile

    first = _one_grid(layers)
    if mpp is not None and not 0 < mpp < float("inf"):
        raise ExplanationError(
            f"Expected microns per pixel greater than zero, but got {mpp}. "
            "Give those of the slide's level 0."
        )
    levels = _levels(np.stack([layer.values for layer in layers.values()]).astype(np.float32))
    num_bytes = sum(level.nbytes for level in levels)
    described = _described(first, tuple(layers), mpp) | {"UUID": _identifier(levels[0])}
    with (
        atomic_path(path) as temporary,
        tifffile.TiffWriter(temporary, bigtiff=num_bytes > _BIG, ome=True) as file,
    ):
        for depth, level in enumerate(levels):
            shown = level if np.isnan(outside) else np.where(np.isnan(level), outside, level)
            size = None if mpp is None else mpp * first.downsample * 2**depth
            file.write(
                _tiles(shown.astype(np.float32)),
                shape=level.shape,
                dtype=np.float32,
                photometric="minisblack",
                tile=(_TILE, _TILE),
                compression="zlib",
                predictor=False,
                resolution=None if size is None else (_MICRONS_PER_CM / size,) * 2,
                resolutionunit=None if size is None else "CENTIMETER",
                subifds=len(levels) - 1 if depth == 0 else None,
                subfiletype=1 if depth else 0,
                metadata=described if depth == 0 else None,
                maxworkers=1,
            )


def _one_grid(layers: Mapping[str, ScoreMap]) -> ScoreMap:
    """Give the first map, whose pixels all others must have."""
    if not layers:
        raise ExplanationError("Expected at least one map to write, but got none. Pass a map.")
    (name, first), *others = layers.items()
    grid = (first.values.shape, first.downsample, first.origin)
    for other, layer in others:
        if (found := (layer.values.shape, layer.downsample, layer.origin)) != grid:
            raise ExplanationError(
                f"Expected maps of the same pixels, but '{name}' has {grid} and '{other}' has "
                f"{found} (shape, downsample, origin). Make both with the same downsample."
            )
    return first


def _levels(values: Float[np.ndarray, "C h w"]) -> list[Float[np.ndarray, "C _ _"]]:
    levels = [values]
    while max(levels[-1].shape[1:]) > _TILE:
        levels.append(_halved(levels[-1]))
    return levels


def _halved(values: Float[np.ndarray, "C h w"]) -> Float[np.ndarray, "C _ _"]:
    """Average blocks of two by two pixels over those that have a score."""
    channels, rows, columns = values.shape
    odd = ((0, 0), (0, rows % 2), (0, columns % 2))
    padded = np.pad(values, odd, constant_values=np.nan)
    blocks = padded.reshape(channels, (rows + 1) // 2, 2, (columns + 1) // 2, 2)
    known = ~np.isnan(blocks)
    count = known.sum(axis=(2, 4))
    total = np.where(known, blocks, 0).sum(axis=(2, 4), dtype=np.float64)
    mean = np.full(count.shape, np.nan, dtype=np.float32)
    np.divide(total, count, out=mean, where=count > 0, casting="same_kind")
    return mean


def _tiles(values: Float[np.ndarray, "C h w"]) -> Iterator[Float[np.ndarray, "t t"]]:
    for channel in values:
        for y in range(0, channel.shape[0], _TILE):
            for x in range(0, channel.shape[1], _TILE):
                tile = channel[y : y + _TILE, x : x + _TILE]
                missing = ((0, _TILE - tile.shape[0]), (0, _TILE - tile.shape[1]))
                yield np.pad(tile, missing)


def _identifier(values: Float[np.ndarray, "C h w"]) -> str:
    """Name the image by its content: by default the name tells the computer and the time."""
    digest = hashlib.sha256(np.ascontiguousarray(values).data).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


def _described(first: ScoreMap, names: tuple[str, ...], mpp: float | None) -> dict[str, Any]:
    """Describe the image in the words of OME's schema."""
    place = [float(axis) * (mpp or 1.0) for axis in first.origin]
    unit = "pixel" if mpp is None else "µm"
    described: dict[str, Any] = {
        "axes": "CYX",
        "Channel": {"Name": list(names)},
        "Plane": {
            "PositionX": [place[0]] * len(names),
            "PositionY": [place[1]] * len(names),
            "PositionXUnit": [unit] * len(names),
            "PositionYUnit": [unit] * len(names),
        },
    }
    if mpp is not None:
        size = mpp * first.downsample
        described |= {"PhysicalSizeX": size, "PhysicalSizeXUnit": unit}
        described |= {"PhysicalSizeY": size, "PhysicalSizeYUnit": unit}
    return described
