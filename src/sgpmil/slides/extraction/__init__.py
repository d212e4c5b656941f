"""From slide files to embeddings on disk, for many slides.

================  ==============================================================================
file              holds
================  ==============================================================================
extract           the whole way, with an encoder
placement         the way up to coordinates, without one
settings          how slides become embeddings
slide_job         the slides to extract, and what became of them
slide_preparation tissue, contours, preview and coordinates of one slide
stored_features   embeddings that are on disk already: whether they can be kept
tile_stream       the tiles of many slides, in order, decoded ahead
tile_workers      the processes that open slides
tile_slots        the memory through which they hand over tiles
write_failure     a folder that cannot be written stops an extraction
progress          the bar
================  ==============================================================================
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.slides.extraction.encoding import Extraction, extract_slides
    from sgpmil.slides.extraction.jobs import ExtractionSettings, SlideJob, SlideOutcome, slide_jobs
    from sgpmil.slides.extraction.placement import place_patches_of
    from sgpmil.slides.extraction.progress import ExtractionProgress, extraction_progress
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "Extraction": "encoding",
            "ExtractionProgress": "progress",
            "ExtractionSettings": "jobs",
            "SlideJob": "jobs",
            "SlideOutcome": "jobs",
            "extract_slides": "encoding",
            "extraction_progress": "progress",
            "place_patches_of": "placement",
            "slide_jobs": "jobs",
        },
    )

__all__ = [
    "Extraction",
    "ExtractionProgress",
    "ExtractionSettings",
    "SlideJob",
    "SlideOutcome",
    "extract_slides",
    "extraction_progress",
    "place_patches_of",
    "slide_jobs",
]
