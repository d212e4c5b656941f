"""One reader a format of patch embeddings: TRIDENT, CLAM, STAMP, slideflow and numpy.

`read_bag` tells the format by itself; `find_bag_files` finds the bags of a folder.
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
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
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "BagFile": "folders",
            "BagFormat": "detection",
            "BagHeader": "raw",
            "RawBag": "raw",
            "detect_format": "detection",
            "find_bag_files": "folders",
            "peek_bag": "detection",
            "read_bag": "detection",
            "read_raw": "detection",
            "slide_name": "detection",
        },
    )

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
