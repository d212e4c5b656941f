"""Slide files are opened and read, in physical units.

================  ==============================================================================
file              holds
================  ==============================================================================
opening           a slide file is opened by what reads it best
slide             a slide: what all backends share
openslide_file    slides that OpenSlide reads
tiff_file         TIFF slides that tifffile reads: OME-TIFF, and what OpenSlide refuses
tiff_chain        the chain of pages in a TIFF, which a file that was cut short has lost
tiff_levels       the levels of a pyramid in a TIFF
tiff_pixels       the pixels of one level of a TIFF, decoded tile by tile
image_file        PNG and JPEG images as slides of one level
colours           samples as files store them become RGB on white
damage            what is said of files that cannot be read
window            windows that reach beyond an image
resizing          images made smaller by area averaging
physical_size     the physical size of a pixel, as files state it
resolution        how large a pixel of a slide is, and how large a patch on it
finding           the slide files in a folder
slide_list        a table of the slides to work on
================  ==============================================================================

All positions are level-0 pixels, x to the right and y down.
"""

from sgpmil.slides.reading.finding import find_slides, is_slide_file
from sgpmil.slides.reading.opening import open_slide
from sgpmil.slides.reading.resolution import (
    Resolution,
    SlideWarning,
    level0_side,
    nominal_magnification,
    slide_resolution,
)
from sgpmil.slides.reading.slide import Level, Slide
from sgpmil.slides.reading.slide_list import ListedSlide, read_slide_list

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
