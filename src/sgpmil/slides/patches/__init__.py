"""Patches of a slide: where they are, and their coordinates and embeddings on disk.

================  ==============================================================================
file              holds
================  ==============================================================================
settings          how large patches are, and which are kept
grid              the patches of a slide: a grid, kept by tissue
layout            where an extraction keeps its files: TRIDENT's layout
coords_file       coordinates as TRIDENT stores them; those of CLAM are read too
features_file     embeddings as TRIDENT stores them
hdf5_file         HDF5 files that are either whole or absent
================  ==============================================================================

All coordinates are level-0 pixels, x to the right and y down.
"""

from sgpmil.slides.patches.coords_file import read_coords, write_coords
from sgpmil.slides.patches.features_file import FeatureWriter, write_features
from sgpmil.slides.patches.grid import Patches, place_patches
from sgpmil.slides.patches.layout import ExtractionFolder
from sgpmil.slides.patches.settings import PatchSettings

__all__ = [
    "ExtractionFolder",
    "FeatureWriter",
    "PatchSettings",
    "Patches",
    "place_patches",
    "read_coords",
    "write_coords",
    "write_features",
]
