"""Tissue of a slide.

================  ============================================================================
file              holds
================  ============================================================================
segmentation      segmentation of tissue against glass, ink and fat
contours          the tissue as an area, and its GeoJSON files, which QuPath edits
preview           a picture of a slide with its tissue and patches
================  ============================================================================

All coordinates are level-0 pixels, x to the right and y down.
"""

from sgpmil.slides.tissue.contours import Tissue, read_contours, write_contours
from sgpmil.slides.tissue.preview import write_preview
from sgpmil.slides.tissue.segmentation import TissueSettings, segment_tissue

__all__ = [
    "Tissue",
    "TissueSettings",
    "read_contours",
    "segment_tissue",
    "write_contours",
    "write_preview",
]
