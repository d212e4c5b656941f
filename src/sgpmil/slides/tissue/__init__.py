"""Where a slide has tissue.

================  ==============================================================================
file              holds
================  ==============================================================================
segmentation      the tissue of a slide, and the settings of what counts as tissue
staining          how strongly each pixel is stained, compared with the glass of its slide
fat               tissue of which only the walls of its cells are seen
ink               pen marks, and black where nothing was scanned
area              the tissue of a slide, and the outline of a mask
contours_file     contours as GeoJSON that QuPath opens, edits and writes back
preview           a picture of a slide with its tissue and patches
================  ==============================================================================

All coordinates are level-0 pixels, x to the right and y down.
"""

from sgpmil.slides.tissue.area import Tissue
from sgpmil.slides.tissue.contours_file import read_contours, write_contours
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
