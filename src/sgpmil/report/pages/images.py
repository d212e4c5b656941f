"""Pictures that a page carries within itself."""

from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from sgpmil.shapes import UInt8

__all__ = ["DataImage", "photo_image", "pixels_image", "plot_image"]

_POINTS_A_PIXEL = 96 / 72
"""A page shows 96 pixels an inch."""

_QUALITY = 88


@dataclass(frozen=True, slots=True)
class DataImage:
    """A picture as a data URI.

    Args:
        uri: The picture.
        width: Width at which it is shown, in CSS pixels.
        height: Height at which it is shown, in CSS pixels.
        alt: What it shows, for those who do not see it.
    """

    uri: str
    width: int
    height: int
    alt: str


def plot_image(figure: Figure, alt: str) -> DataImage:
    """Keep a figure of lines and letters as SVG, sharp at every size.

    Args:
        figure: The figure.
        alt: What it shows.
    """
    content = BytesIO()
    # Letters become outlines, so that the figure looks the same without our fonts; the salt makes
    # the same figure the same text every time.
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "sgpmil"}):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return _image(figure, "svg+xml", content.getvalue(), alt)


def photo_image(figure: Figure, alt: str, dpi: int = 130) -> DataImage:
    """Keep a figure with slides or maps in it as WebP, which is small.

    Args:
        figure: The figure.
        alt: What it shows.
        dpi: Pixels an inch.
    """
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    content = BytesIO()
    pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    Image.fromarray(pixels).save(content, format="webp", quality=_QUALITY)
    return _image(figure, "webp", content.getvalue(), alt)


def pixels_image(pixels: UInt8[np.ndarray, "h w 3"], alt: str) -> DataImage:
    """Keep pixels as WebP.

    Args:
        pixels: The pixels.
        alt: What they show.
    """
    content = BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(content, format="webp", quality=_QUALITY)
    height, width = pixels.shape[:2]
    return DataImage(_uri("webp", content.getvalue()), width, height, alt)


def _image(figure: Figure, kind: str, content: bytes, alt: str) -> DataImage:
    width, height = (round(72 * _POINTS_A_PIXEL * float(side)) for side in figure.get_size_inches())
    return DataImage(_uri(kind, content), width, height, alt)


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{b64encode(content).decode('ascii')}"
