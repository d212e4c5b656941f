"""Synthetic slides: tissue stained with haematoxylin and eosin, of which everything is known.

=================  =============================================================================
file               holds
=================  =============================================================================
settings           what the synthetic slides are to be like
scene              a slide as a drawing, in microns
tissue_outline     the outline of the tissue
anatomy            glands, lymphocytes, fat, vessels and folds
tumour             the tumour, of exactly the share that was asked for
pen                what someone drew on the glass
outlines           the organic shapes that these are made of
stain              concentrations of the two stains become colours
render             scenes become pixels, of any window, and classes of pixels
painter            areas, cells and fibres become colours
pigments           what each part of the tissue takes up of the stains
cells              where cells lie, by what is painted there
nuclei             pictures of single nuclei
weave              slow changes over a slide, and the fibres that follow them
textures           grain, fibres and noise that repeat themselves
lattice            chance that depends on the place alone
filling            areas become pixels
windows            windows of a slide
pyramid_file       a scene becomes a pyramidal TIFF
truth_files        what is known of a scene becomes GeoJSON
record             what a folder of phantoms holds
folder             many slides, in worker processes
progress           the progress bar
=================  =============================================================================

Scenes are in microns; pixels are of level 0, x to the right and y down.
"""

from sgpmil.phantoms.folder import PhantomFolder, write_phantoms
from sgpmil.phantoms.pyramid_file import write_phantom
from sgpmil.phantoms.render import TissueClass, render, render_classes
from sgpmil.phantoms.scene import Scene, make_scene
from sgpmil.phantoms.settings import PhantomSettings

__all__ = [
    "PhantomFolder",
    "PhantomSettings",
    "Scene",
    "TissueClass",
    "make_scene",
    "render",
    "render_classes",
    "write_phantom",
    "write_phantoms",
]
