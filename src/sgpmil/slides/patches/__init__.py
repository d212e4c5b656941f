"""Patches of a slide: positions, coordinates and embeddings on disk.

================  ============================================================================
file              holds
================  ============================================================================
grid              the grid of patches on tissue, and its settings
patch_files       files of coordinates and embeddings, in TRIDENT's layout
hdf5_file         HDF5 files that are either whole or absent
================  ============================================================================

All coordinates are level-0 pixels, x to the right and y down.
"""

from sgpmil.slides.patches.grid import Patches, PatchSettings, place_patches
from sgpmil.slides.patches.patch_files import (
    ExtractionFolder,
    FeatureWriter,
    read_coords,
    write_coords,
)

__all__ = [
    "ExtractionFolder",
    "FeatureWriter",
    "PatchSettings",
    "Patches",
    "place_patches",
    "read_coords",
    "write_coords",
]
