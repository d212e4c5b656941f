"""Readers of patch embeddings: TRIDENT, CLAM, STAMP, slideflow and numpy files.

`formats` finds bag files and detects their formats. Each format has one reader: TRIDENT, CLAM and
STAMP in `hdf5`, CLAM's tensors and slideflow in `torch_files`, arrays in `numpy_files`.
"""
