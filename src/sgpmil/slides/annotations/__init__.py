"""Annotations that experts drew on slides, and the patch labels that follow from them.

================  ============================================================================
file              holds
================  ============================================================================
regions           drawn regions, and the rules for which are positive
region_files      regions from ASAP's XML (CAMELYON16, CAMELYON17) and GeoJSON (QuPath)
mask              rasters of the positive area
folder            annotations of a slide or of a folder, in any format
patch_labels      the positive share of each patch, and its label
lesions           the connected lesions of a slide
================  ============================================================================

All coordinates are level-0 pixels, x to the right and y down.
"""

from sgpmil.slides.annotations.folder import AnnotationFolder, open_annotations, read_annotations
from sgpmil.slides.annotations.lesions import Lesions, find_lesions
from sgpmil.slides.annotations.mask import AnnotationMask, read_mask
from sgpmil.slides.annotations.patch_labels import patch_coverage, patch_labels
from sgpmil.slides.annotations.region_files import read_asap_xml, read_geojson
from sgpmil.slides.annotations.regions import (
    CAMELYON,
    Annotations,
    Region,
    RegionRule,
    SkippedRegionWarning,
    bracs_rule,
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
