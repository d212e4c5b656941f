"""Whole-slide files become tissue, patches and embeddings; what experts drew becomes labels.

================  ==============================================================================
room              holds
================  ==============================================================================
reading           slide files are opened and read, in physical units
tissue            where a slide has tissue
patches           where patches are, their coordinates and embeddings on disk
encoders          patches become embeddings
extraction        the whole way from slide files to embeddings, for many slides
phantoms          synthetic slides of which everything is known
annotations       what experts drew on slides, and what that says of each patch
cores             how many processes are worth starting
optional_part     the packages of the optional part `slides`, loaded when they are first needed
================  ==============================================================================

All coordinates are level-0 pixels, x to the right and y down.
"""
