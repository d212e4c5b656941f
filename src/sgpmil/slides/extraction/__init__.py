"""Extraction: from slide files to embeddings on disk, for many slides.

================  ==============================================================================
file              holds
================  ==============================================================================
extract           `extract_folder`, the whole way, and the way up to coordinates
jobs              slides to extract, settings and outcomes
preparation       tissue, contours, preview and coordinates of one slide
tile_workers      processes that open slides, and the memory in which they return tiles
tile_stream       the tiles of many slides, in order, decoded ahead
encoding          embeddings of many slides, encoded and written
elsewhere         the same by workers on other machines
progress          the progress bar
================  ==============================================================================
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.slides.extraction.encoding import Extraction, extract_slides
    from sgpmil.slides.extraction.extract import (
        ExtractedFolder,
        ExtractOptions,
        extract_folder,
        place_patches_of,
    )
    from sgpmil.slides.extraction.jobs import (
        ExtractionSettings,
        SlideJob,
        SlideOutcome,
        slide_jobs,
    )
    from sgpmil.slides.extraction.progress import ExtractionProgress, extraction_progress
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "encoding": "Extraction extract_slides",
            "extract": "ExtractOptions ExtractedFolder extract_folder place_patches_of",
            "jobs": "ExtractionSettings SlideJob SlideOutcome slide_jobs",
            "progress": "ExtractionProgress extraction_progress",
        },
    )

__all__ = [
    "ExtractOptions",
    "ExtractedFolder",
    "Extraction",
    "ExtractionProgress",
    "ExtractionSettings",
    "SlideJob",
    "SlideOutcome",
    "extract_folder",
    "extract_slides",
    "extraction_progress",
    "place_patches_of",
    "slide_jobs",
]
