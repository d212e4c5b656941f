"""Preview pictures of slides with their tissue and patches."""

import os
from pathlib import Path

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.shapes import Int
from sgpmil.slides.optional_part import Geometry, require_package
from sgpmil.slides.reading import Slide
from sgpmil.slides.tissue.contours import Tissue

LONGEST = 1600
"""Longer side of the picture in pixels."""

_TISSUE, _HOLE, _PATCH = (0, 150, 60), (30, 80, 255), (40, 40, 40)
_FRACTION = 16
"""OpenCV draws at sixteenths of a pixel, from the centre of the first."""


def write_preview(
    path: str | os.PathLike[str],
    slide: Slide,
    tissue: Tissue,
    coords: Int[np.ndarray, "N 2"] | None = None,
    side: int | None = None,
    *,
    mpp: float | None = None,
) -> None:
    """Draw a slide with the outline of its tissue (green), of holes (blue), and its patches.

    Args:
        path: File to write, whole or not at all: PNG or JPEG by its suffix.
        slide: The slide.
        tissue: Its tissue.
        coords: Top-left corner (x, y) of each patch in level-0 pixels.
        side: Side of a patch in level-0 pixels.
        mpp: Microns per level-0 pixel, for the scale bar; by default as the file states. Without
            either there is no bar.

    Raises:
        SlideError: The slide cannot be read.
        OSError: The file cannot be written.
    """
    require_package("cv2")
    import cv2

    image = np.ascontiguousarray(slide.thumbnail(LONGEST)[:, :, ::-1])  # as OpenCV has colours
    scale = np.array([image.shape[1] / slide.size[0], image.shape[0] / slide.size[1]])
    if coords is not None and side is not None:
        _draw_patches(image, coords, side, scale)
    _draw_tissue(image, tissue.area, scale)
    mpp = slide.mpp if mpp is None else mpp
    if mpp is not None:
        _draw_bar(image, mpp / float(scale[0]))
    target = Path(path)
    options = {".jpg": [cv2.IMWRITE_JPEG_QUALITY, 90], ".jpeg": [cv2.IMWRITE_JPEG_QUALITY, 90]}
    suffix = target.suffix.lower()
    _, data = cv2.imencode(suffix if suffix in options else ".png", image, options.get(suffix, []))
    with atomic_path(target) as temporary:
        temporary.write_bytes(data.tobytes())


def _draw_patches(
    image: np.ndarray, coords: Int[np.ndarray, "N 2"], side: int, scale: np.ndarray
) -> None:
    import cv2

    # Drawn on a copy and mixed in, so that the tissue stays visible under a fine grid.
    corners = np.array([[0, 0], [side, 0], [side, side], [0, side]])
    squares = (coords[:, None, :] + corners) * scale - 0.5
    drawn = image.copy()
    for square in np.rint(squares * _FRACTION).astype(np.int32):
        cv2.polylines(drawn, [square], True, _bgr(_PATCH), 1, cv2.LINE_AA, 4)
    image[:] = cv2.addWeighted(drawn, 0.6, image, 0.4, 0)


def _draw_tissue(image: np.ndarray, area: Geometry, scale: np.ndarray) -> None:
    import cv2
    import shapely

    def line(ring: Geometry) -> np.ndarray:
        points = shapely.get_coordinates(ring) * scale - 0.5
        return np.rint(points * _FRACTION).astype(np.int32)

    for piece in shapely.get_parts(area):
        for ring in piece.interiors:
            cv2.polylines(image, [line(ring)], True, _bgr(_HOLE), 2, cv2.LINE_AA, 4)
        cv2.polylines(image, [line(piece.exterior)], True, _bgr(_TISSUE), 2, cv2.LINE_AA, 4)


def _draw_bar(image: np.ndarray, microns: float) -> None:
    """Draw a bar of a round length, about a fifth of the picture's width."""
    import cv2

    height, width = image.shape[:2]
    wanted = width * microns / 5
    power = 10.0 ** np.floor(np.log10(wanted))
    length = max(step * power for step in (1, 2, 5) if step * power <= wanted)
    pixels = round(length / microns)
    text = f"{length / 1000:g} mm"
    size = max(0.4, min(width, height) / 1400)
    (text_width, text_height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, 1)
    margin = max(6, width // 80)
    box_width = max(pixels, text_width) + 2 * margin
    box_height = text_height + 3 * margin
    if box_width > width or box_height > height:
        return  # a picture too small for a bar
    top, left = height - box_height, 0
    panel = image[top:, left : left + box_width]
    panel[:] = cv2.addWeighted(panel, 0.15, np.full_like(panel, 255), 0.85, 0)
    y = height - margin
    image[y : y + max(2, height // 300), margin : margin + pixels] = 0
    cv2.putText(
        image,
        text,
        (margin, y - margin),
        cv2.FONT_HERSHEY_SIMPLEX,
        size,
        (0, 0, 0),
        max(1, round(size * 1.6)),
        cv2.LINE_AA,
    )


def _bgr(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    red, green, blue = colour
    return blue, green, red
