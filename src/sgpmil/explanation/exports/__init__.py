"""Scores of the patches as files that other programs open.

================  ==============================================================================
file              opens in
================  ==============================================================================
tables            any program that reads Parquet or CSV: one row per patch
geojson           QuPath (tiles with measurements) and TIAToolbox (an overlay for its viewer)
score_tiff        QuPath, Fiji, napari, OMERO: maps as pyramidal OME-TIFF
================  ==============================================================================

All coordinates are level-0 pixels, x to the right and y down. Every file appears under its name
when it is complete.
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
