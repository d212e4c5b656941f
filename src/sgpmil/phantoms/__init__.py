"""Synthetic slides, stained with haematoxylin and eosin, with known tissue and tumour.

================  ============================================================================
file              holds
================  ============================================================================
scene             a slide as a drawing in microns, and its settings
outlines          organic shapes, and the outline of the tissue
anatomy           glands, lymphocytes, fat, vessels, folds and the tumour
stain             the two stains: their colours, and their uptake by each part of the tissue
textures          random fields, fibres, grain and noise that depend on the place alone
weave             slow changes over a slide, and the fibres that follow them
nuclei            pictures of single nuclei
cells             positions of cells
filling           areas as pixels of a window
painter           pixels of any window of a scene
pyramid_file      a scene as a pyramidal TIFF
truth_files       tissue and tumour of a scene as GeoJSON
folder            many slides with labels, drawn in worker processes
================  ============================================================================

Scenes are in microns; pixels are of level 0, x to the right and y down.
"""

from sgpmil.phantoms.folder import PhantomFolder, PhantomOptions, draw_phantoms, write_phantoms
from sgpmil.phantoms.painter import render
from sgpmil.phantoms.pyramid_file import write_phantom
from sgpmil.phantoms.scene import PhantomSettings, Scene, make_scene

__all__ = [
    "PhantomFolder",
    "PhantomOptions",
    "PhantomSettings",
    "Scene",
    "draw_phantoms",
    "make_scene",
    "render",
    "write_phantom",
    "write_phantoms",
]
