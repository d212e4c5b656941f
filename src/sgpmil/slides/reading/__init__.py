"""Reading of slide files, in physical units.

================  ============================================================================
file              holds
================  ============================================================================
opening           `open_slide`, which chooses a backend by the file's content
slide             the base class of slides, and errors about damaged files
openslide_file    slides read by OpenSlide
tiff_file         TIFF slides read by tifffile: OME-TIFF, and files that OpenSlide refuses
tiff_pixels       the levels of a TIFF pyramid, decoded tile by tile
image_file        PNG and JPEG images as slides of one level
pixels            conversion to RGB, windows beyond the edge, and resizing
resolution        microns per pixel and magnification, and the size of a patch
finding           slide files in a folder or in a table
================  ============================================================================

All positions are level-0 pixels, x to the right and y down.
"""

from sgpmil.slides.reading.finding import ListedSlide, find_slides, is_slide_file, read_slide_list
from sgpmil.slides.reading.opening import open_slide
from sgpmil.slides.reading.resolution import (
    Resolution,
    SlideWarning,
    level0_side,
    nominal_magnification,
    slide_resolution,
)
from sgpmil.slides.reading.slide import Level, Slide

__all__ = [
    "Level",
    "ListedSlide",
    "Resolution",
    "Slide",
    "SlideWarning",
    "find_slides",
    "is_slide_file",
    "level0_side",
    "nominal_magnification",
    "open_slide",
    "read_slide_list",
    "slide_resolution",
]
