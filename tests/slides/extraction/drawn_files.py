"""Small slide files with tissue at a known place."""

from functools import cache
from io import BytesIO

import numpy as np
import tifffile

MPP = 0.5
WIDTH, HEIGHT = 2048, 1536
TISSUE = (256, 256, 1792, 1280)
"""Left, top, right and bottom of the tissue: 6 × 4 patches of 256 px."""


def picture(seed, tissue=TISSUE):
    rng = np.random.default_rng(seed)
    image = np.full((HEIGHT, WIDTH, 3), 244.0)
    if tissue is not None:
        left, top, right, bottom = tissue
        cells = rng.uniform(0.6, 1.0, size=((bottom - top) // 16, (right - left) // 16, 1))
        cells = cells.repeat(16, axis=0).repeat(16, axis=1)
        image[top:bottom, left:right] = cells * np.array([225.0, 120.0, 180.0])
    image += rng.normal(0, 2, size=(HEIGHT, WIDTH, 1))
    return image.clip(0, 255).astype(np.uint8)


def write_slide(path, seed=0, tissue=TISSUE, mpp=MPP):
    """Write a TIFF of three levels; returns its pixels."""
    pixels, content = _slide(seed, tissue, mpp)
    path.write_bytes(content)
    return pixels


@cache
def _slide(seed, tissue, mpp):
    pixels = picture(seed, tissue)
    content = BytesIO()
    with tifffile.TiffWriter(content, bigtiff=True) as file:
        level = pixels
        for number in range(3):
            options = {"tile": (256, 256), "photometric": "rgb", "compression": "deflate"}
            if mpp is not None:
                per_cm = 1e4 / mpp / 2**number
                options |= {"resolution": (per_cm, per_cm), "resolutionunit": "CENTIMETER"}
            file.write(level, subfiletype=int(number > 0), metadata=None, **options)
            height, width = level.shape[0] // 2, level.shape[1] // 2
            level = level.reshape(height, 2, width, 2, 3).mean(axis=(1, 3)).round().astype(np.uint8)
    pixels.flags.writeable = False  # other tests are given the same
    return pixels, content.getvalue()


def write_folder(folder, num_slides=3):
    folder.mkdir()
    return {f"slide {n}.é": write_slide(folder / f"slide {n}.é.tiff", n) for n in range(num_slides)}
