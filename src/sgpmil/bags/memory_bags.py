"""Data sets of arrays in memory, in order or by name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset, refuse_mixed_dims
from sgpmil.bags.memory_labels import DataFrame, MemoryLabels, Series, memory_labels
from sgpmil.bags.readers.raw import as_coords, as_features, as_instance_labels
from sgpmil.bags.reading import label_bags
from sgpmil.bags.sources import MemorySource
from sgpmil.bags.tables import listed
from sgpmil.bags.target import encode_classes
from sgpmil.errors import BagError

_NUMBERED = "bag-"


def bags_from_arrays(
    features: Sequence[Any] | Mapping[str, Any],
    labels: Sequence[Any] | NDArray[Any] | Tensor | MemoryLabels | None = None,
    *,
    slide_ids: Sequence[str] | None = None,
    case_ids: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    ordinal: bool = False,
    instance_labels: Sequence[Any] | Mapping[str, Any] | None = None,
    coords: Sequence[Any] | Mapping[str, Any] | None = None,
    patch_size: int | Mapping[str, int] | None = None,
) -> BagDataset:
    """Make a data set of arrays; the arguments are those of `BagDataset.from_arrays`."""
    if isinstance(features, Mapping):
        if slide_ids is not None:
            raise BagError(
                "Expected a dictionary of bags, which has their names, without `slide_ids`, "
                "but got both. Leave `slide_ids` out."
            )
        slide_ids, features = list(features), list(features.values())
    instance_labels = _in_order(instance_labels, slide_ids, "instance_labels")
    coords = _in_order(coords, slide_ids, "coords")
    if isinstance(labels, Mapping | DataFrame) or _is_by_name(labels, slide_ids):
        unlabelled = bags_from_arrays(
            features,
            slide_ids=slide_ids,
            instance_labels=instance_labels,
            coords=coords,
            patch_size=patch_size,
        )
        table = memory_labels(labels)
        if case_ids is not None:
            _refuse_length("case_ids", case_ids, len(unlabelled))
            case_of = dict(zip(unlabelled.slide_ids, case_ids, strict=True))
            table = replace(table, case_ids=tuple(case_of.get(s, s) for s in table.slide_ids))
        return label_bags(unlabelled, table, "the labels", class_names, ordinal=ordinal)
    if isinstance(labels, Series):
        labels = labels.tolist()
    count = len(features)
    ids = [f"{_NUMBERED}{i}" for i in range(count)] if slide_ids is None else list(slide_ids)
    cases = ids if case_ids is None else list(case_ids)
    columns = {
        "slide_ids": ids,
        "case_ids": cases,
        "labels": labels,
        "instance_labels": instance_labels,
        "coords": coords,
    }
    for name, column in columns.items():
        _refuse_length(name, column, count)
    given = [None] * count if labels is None else labels
    indices, target = encode_classes(given, class_names, ordinal=ordinal)
    bags = [
        _memory_bag(
            array,
            ids[i],
            None if coords is None else coords[i],
            None if instance_labels is None else instance_labels[i],
            patch_size.get(ids[i]) if isinstance(patch_size, Mapping) else patch_size,
        ).labelled(indices[i], cases[i])
        for i, array in enumerate(features)
    ]
    dataset = BagDataset(MemorySource(bags), tuple(ids), tuple(cases), indices, target)
    refuse_mixed_dims(dataset.source, dataset.slide_ids)
    return dataset


def is_numbered_name(name: str) -> bool:
    """Return whether a bag has this name only because it was given none."""
    return name.startswith(_NUMBERED) and name.removeprefix(_NUMBERED).isdecimal()


def _refuse_length(name: str, column: Any, count: int) -> None:
    if column is not None and len(column) != count:
        raise BagError(f"Expected {count} {name}, one for each bag, but got {len(column)}.")


def _is_by_name(labels: Any, slide_ids: Sequence[str] | None) -> TypeGuard[Series]:
    """Return whether labels are a Series with slides as its index, not just one in order."""
    return isinstance(labels, Series) and not {*labels.index}.isdisjoint(slide_ids or ())


def _in_order(
    values: Sequence[Any] | Mapping[str, Any] | None, slide_ids: Sequence[str] | None, name: str
) -> Sequence[Any] | None:
    """List what a dictionary holds for each bag; None where it has nothing for one."""
    if not isinstance(values, Mapping):
        return values
    unknown = [key for key in values if slide_ids is None or key not in slide_ids]
    if unknown:
        raise BagError(
            f"Expected `{name}` of named bags, but got {len(unknown)} of others: "
            f"{listed(unknown)}. Name them as the features are named."
        )
    return [values.get(slide_id) for slide_id in slide_ids or ()]


def _memory_bag(
    array: Any, slide_id: str, coords: Any, instance_labels: Any, patch_size: int | None
) -> Bag:
    where, shape = Path(slide_id), np.shape(array)
    if len(shape) != 2 and shape != (0,) and not (len(shape) == 3 and shape[0] == 1):
        raise BagError(
            f"Expected each bag as an array of shape (instances, features), but got shape "
            f"{tuple(shape)} ('{slide_id}'). Give a list of bags, an array each."
        )
    features = as_features(array if isinstance(array, Tensor) else np.asarray(array), where)
    count = features.shape[0]
    return Bag(
        features,
        slide_id,
        coords=None if coords is None else as_coords(np.asarray(coords), count, where),
        patch_size=patch_size,
        instance_labels=None
        if instance_labels is None
        else as_instance_labels(np.asarray(instance_labels), count, where),
    )
