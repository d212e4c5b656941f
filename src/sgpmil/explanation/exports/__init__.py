"""Scores of the patches as files that other programs open.

================  ==============================================================================
file              opens in
================  ==============================================================================
tables            anything that reads Parquet or CSV: a row a patch
qupath            QuPath: tiles with measurements, as GeoJSON
tiatoolbox        TIAToolbox: an overlay for its viewer, as GeoJSON
score_tiff        QuPath, Fiji, napari, OMERO: maps as pyramidal OME-TIFF
patch_squares     (what the two GeoJSONs share: a feature a patch)
================  ==============================================================================

All coordinates are level-0 pixels, x to the right and y down. Every file appears under its name
when it is whole.
"""

from sgpmil.explanation.exports.geojson import write_qupath_geojson, write_tiatoolbox_overlay
from sgpmil.explanation.exports.score_tiff import write_score_tiff
from sgpmil.explanation.exports.tables import patch_table, write_patch_table

__all__ = [
    "patch_table",
    "write_patch_table",
    "write_qupath_geojson",
    "write_score_tiff",
    "write_tiatoolbox_overlay",
]
