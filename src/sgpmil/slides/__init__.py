"""Whole-slide files become tissue, patches and embeddings; what experts drew becomes labels.

================  ==============================================================================
room              holds
================  ==============================================================================
annotations       what experts drew on slides, and what that says of each patch
optional_part     the packages of the optional part `slides`, loaded when they are first needed
================  ==============================================================================

All coordinates are level-0 pixels, x to the right and y down.
"""
