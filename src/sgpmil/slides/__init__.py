"""Slides: from whole-slide files to tissue, patches and embeddings, and annotations of experts.

================  ==============================================================================
room              holds
================  ==============================================================================
reading           reading of slide files, in physical units
tissue            segmentation of tissue
patches           positions of patches, their coordinates and embeddings on disk
encoders          patch encoders
extraction        the whole way from slide files to embeddings, for many slides
annotations       annotations of experts, and the labels of patches
optional_part     packages of the optional part `slides`, loaded when they are first needed
================  ==============================================================================

All coordinates are level-0 pixels, x to the right and y down.
"""
