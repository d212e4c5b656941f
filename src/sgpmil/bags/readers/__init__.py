"""One reader a format of patch embeddings: TRIDENT, CLAM, STAMP, slideflow and numpy.

`read_bag` tells the format by itself; `find_bag_files` finds the bags of a folder.
"""

from sgpmil.bags.readers.detection import (
    BagFormat,
    detect_format,
    peek_bag,
    read_bag,
    read_raw,
    slide_name,
)
from sgpmil.bags.readers.folders import BagFile, find_bag_files
from sgpmil.bags.readers.raw import BagHeader, RawBag

__all__ = [
    "BagFile",
    "BagFormat",
    "BagHeader",
    "RawBag",
    "detect_format",
    "find_bag_files",
    "peek_bag",
    "read_bag",
    "read_raw",
    "slide_name",
]
