"""Slide files as scanners and other programs write them, for the tests."""

from pathlib import Path

import numpy as np
import pytest

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "slides"
CMU = SHARED / "cmu-1-small-region.svs"
TCGA = SHARED / "tcga-cr-7395-01a-01-ts1.svs"
BROKEN = SHARED / "broken.svs"
needs_slides = pytest.mark.skipif(not SHARED.is_dir(), reason="shared/data/slides is not here")


def picture(height, width, seed=0):
    """Draw smooth blobs of all colours: what JPEG keeps well, and shifts show in."""
    import cv2

    noise = np.random.default_rng(seed).normal(size=(height, width, 3))
    smooth = cv2.GaussianBlur(noise, (0, 0), 4)
    low, high = smooth.min(), smooth.max()
    return np.round(255 * (smooth - low) / (high - low)).astype(np.uint8)


def halves(image, levels):
    """Give a pyramid: each level the means of 2 × 2 pixels of the one before."""
    pyramid = [image]
    for _ in range(levels - 1):
        last = pyramid[-1].astype(float)
        rows, columns = (side // 2 * 2 for side in last.shape[:2])
        part = last[:rows, :columns]
        mean = (part[::2, ::2] + part[1::2, ::2] + part[::2, 1::2] + part[1::2, 1::2]) / 4
        pyramid.append(np.round(mean).astype(image.dtype))
    return pyramid


def write_tiff(path, pyramid, *, subifds=False, mpp=0.25, reduced=True, **options):
    """Write a pyramid; in pages of its own as OpenSlide reads it, or in SubIFDs."""
    import tifffile

    fixed = {"photometric": "rgb", "tile": (64, 64), "compression": "lzw", "metadata": None}
    fixed |= options
    if mpp is not None:
        fixed |= {"resolution": (1e4 / mpp, 1e4 / mpp), "resolutionunit": "CENTIMETER"}
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        for number, level in enumerate(pyramid):
            extra = {"subifds": len(pyramid) - 1} if subifds and not number else {}
            kind = int(reduced and number > 0)
            writer.write(level, subfiletype=kind, **fixed, **extra)
    return path


def write_ome(path, pyramid, *, axes="YXS", physical=None, **options):
    """Write OME-TIFF, its lower levels in SubIFDs."""
    import tifffile

    fixed = {"photometric": "rgb", "tile": (64, 64), "compression": "lzw"} | options
    with tifffile.TiffWriter(path, ome=True) as writer:
        writer.write(
            pyramid[0],
            subifds=len(pyramid) - 1,
            metadata={"axes": axes, **(physical or {})},
            **fixed,
        )
        for level in pyramid[1:]:
            writer.write(level, subfiletype=1, **fixed)
    return path


def difference(a, b):
    """Give the largest difference of two images, in grey levels."""
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max())
