"""What experts drew on slides, and what that says of each patch.

================  ==============================================================================
file              holds
================  ==============================================================================
regions           regions that someone drew on a slide, and the rule of which are positive
asap_xml          regions from ASAP's XML (CAMELYON16, CAMELYON17)
geojson           regions from GeoJSON (QuPath)
bracs             the rule for the regions of BRACS
polygons          rings as they were drawn become valid areas
mask              a raster of the positive area, from a TIFF
files             the annotations of a slide, from a file of any of these formats
folder            the annotations of many slides, a file a slide
patch_labels      how much of each patch is positive, and the label that follows
lesions           the connected lesions of a slide
raster            annotations as an image
================  ==============================================================================

All coordinates are level-0 pixels, x to the right and y down.
"""

from sgpmil.slides.annotations.asap_xml import read_asap_xml
from sgpmil.slides.annotations.bracs import bracs_rule
from sgpmil.slides.annotations.files import read_annotations
from sgpmil.slides.annotations.folder import AnnotationFolder, open_annotations
from sgpmil.slides.annotations.geojson import read_geojson
from sgpmil.slides.annotations.lesions import Lesions, find_lesions
from sgpmil.slides.annotations.mask import AnnotationMask, read_mask
from sgpmil.slides.annotations.patch_labels import patch_coverage, patch_labels
from sgpmil.slides.annotations.regions import (
    CAMELYON,
    Annotations,
    Region,
    RegionRule,
    SkippedRegionWarning,
    select_regions,
)

__all__ = [
    "CAMELYON",
    "AnnotationFolder",
    "AnnotationMask",
    "Annotations",
    "Lesions",
    "Region",
    "RegionRule",
    "SkippedRegionWarning",
    "bracs_rule",
    "find_lesions",
    "open_annotations",
    "patch_coverage",
    "patch_labels",
    "read_annotations",
    "read_asap_xml",
    "read_geojson",
    "read_mask",
    "select_regions",
]
