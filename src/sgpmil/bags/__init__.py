"""Bags of instances, read from the embeddings of slides.

A slide is a *bag* of instances: the embeddings of its patches, with one label. This package reads
the files that other tools write, joins them with labels and splits, and returns bags one at a
time::

    bag files --readers--> BagSource --BagDataset--> Bag, Bag, ... --pack--> BagBatch
    label table --labels--> LabelTable --splits--> Fold, Fold, ...

`read_bags` opens a data set, `inspect_folder` lists its faults, `pack_bags` turns it into a packed
store that reads fast. A `Target` says what a label is. HDF5 is imported with the first file that
needs it, so that importing the package stays quick.
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.bags.bag import NO_LABEL, Bag, BagBatch
    from sgpmil.bags.dataset import BagDataset
    from sgpmil.bags.inspection import (
        ClassCount,
        Inspection,
        InstanceCounts,
        UnreadableSlide,
        inspect_folder,
    )
    from sgpmil.bags.labels import LabelRow, LabelTable, read_labels
    from sgpmil.bags.packing import pack_bags
    from sgpmil.bags.readers.formats import (
        BagFile,
        BagFormat,
        detect_format,
        find_bag_files,
        peek_bag,
    )
    from sgpmil.bags.readers.raw import BagHeader
    from sgpmil.bags.reading import (
        EmptySlideWarning,
        SkippedSlideWarning,
        read_bags,
        read_packed_npz,
    )
    from sgpmil.bags.sources import BagSource, FolderSource, MemorySource
    from sgpmil.bags.split_files import read_splits, write_splits
    from sgpmil.bags.splits import (
        Fold,
        MissingSlideWarning,
        PlaceholderCaseWarning,
        SharedCaseWarning,
        UnusedSlideWarning,
        check_folds,
        make_kfold,
        make_monte_carlo,
    )
    from sgpmil.bags.store import PackedStore, is_store
    from sgpmil.bags.target import (
        ClassTarget,
        OrdinalTarget,
        Target,
        class_order,
        read_target,
    )
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "bag": "NO_LABEL Bag BagBatch",
            "dataset": "BagDataset",
            "inspection": "ClassCount Inspection InstanceCounts UnreadableSlide inspect_folder",
            "labels": "LabelRow LabelTable read_labels",
            "packing": "pack_bags",
            "readers.formats": "BagFile BagFormat detect_format find_bag_files peek_bag",
            "readers.raw": "BagHeader",
            "reading": "EmptySlideWarning SkippedSlideWarning read_bags read_packed_npz",
            "sources": "BagSource FolderSource MemorySource",
            "split_files": "read_splits write_splits",
            "splits": (
                "Fold MissingSlideWarning PlaceholderCaseWarning SharedCaseWarning "
                "UnusedSlideWarning "
                "check_folds make_kfold make_monte_carlo"
            ),
            "store": "PackedStore is_store",
            "target": "ClassTarget OrdinalTarget Target class_order read_target",
        },
    )

__all__ = [
    "NO_LABEL",
    "Bag",
    "BagBatch",
    "BagDataset",
    "BagFile",
    "BagFormat",
    "BagHeader",
    "BagSource",
    "ClassCount",
    "ClassTarget",
    "EmptySlideWarning",
    "Fold",
    "FolderSource",
    "Inspection",
    "InstanceCounts",
    "LabelRow",
    "LabelTable",
    "MemorySource",
    "MissingSlideWarning",
    "OrdinalTarget",
    "PackedStore",
    "PlaceholderCaseWarning",
    "SharedCaseWarning",
    "SkippedSlideWarning",
    "Target",
    "UnreadableSlide",
    "UnusedSlideWarning",
    "check_folds",
    "class_order",
    "detect_format",
    "find_bag_files",
    "inspect_folder",
    "is_store",
    "make_kfold",
    "make_monte_carlo",
    "pack_bags",
    "peek_bag",
    "read_bags",
    "read_labels",
    "read_packed_npz",
    "read_splits",
    "read_target",
    "write_splits",
]
