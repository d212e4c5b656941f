"""Data sets on disk: bags of any format, joined with their labels."""

import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sgpmil.bags.dataset import BagDataset, of_other_width, refuse_mixed_dims
from sgpmil.bags.label_kind import spelt_as
from sgpmil.bags.labels import LabelTable, read_labels
from sgpmil.bags.memory_labels import MemoryLabels, memory_labels
from sgpmil.bags.packing import pack_bags
from sgpmil.bags.readers.formats import BagFile, find_bag_files
from sgpmil.bags.readers.numpy_files import load_npz
from sgpmil.bags.sources import BagSource, FolderSource
from sgpmil.bags.store import PackedStore, is_store
from sgpmil.bags.tables import listed
from sgpmil.bags.target import ClassTarget, OrdinalTarget
from sgpmil.errors import BagError, LabelError, damage_as


class EmptySlideWarning(UserWarning):
    """Slides without tissue were left out of a data set."""


class SkippedSlideWarning(UserWarning):
    """Slides were left out of a data set, as the caller asked."""


def read_bags(
    folder: Path | str,
    labels: Path | str | LabelTable | MemoryLabels | None = None,
    *,
    classes: tuple[str, ...] | list[str] | None = None,
    ordinal: bool = False,
    slide_column: str | None = None,
    label_column: str | None = None,
    case_column: str | None = None,
    slide_table: Path | str | None = None,
    on_mismatch: Literal["error", "skip"] = "error",
    on_bad: Literal["error", "skip"] = "error",
    cache: Path | str | None = None,
) -> BagDataset:
    """Open a data set, whose bags are read on demand.

    Slides without instances are left out with a warning: extraction writes them for slides
    without tissue. NaN and infinity are found when a bag is read.

    Args:
        folder: Folder of bag files of any known format, a packed store, or a `.npz` file of
            many bags.
        labels: File of a table of labels; a pandas DataFrame with the columns ``slide_id``,
            ``label`` and perhaps ``case_id`` (slides may be its index), or a Series; or a
            dictionary from slide to label. Without it, labels are those that a packed store or
            `.npz` file has.
        classes: Order of the classes; see `class_order` for the order without it.
        ordinal: Whether the classes are ordered, such as grades, from the lowest to the highest.
            Without `classes`, they must be on a known scale (`find_scale`) or numbers. Labels that
            a packed store or `.npz` file has are ordered as they are.
        slide_column: Column of slide names in the table.
        label_column: Column of labels in the table.
        case_column: Column of patients in the table.
        slide_table: Table of the slides of each patient, where labels are given to patients.
        on_mismatch: Whether to refuse or to leave out slides without a label and labels without
            a slide.
        on_bad: Whether to refuse or to leave out damaged files, bags that are not finite, and
            bags of another number of features than most.
            "skip" reads every bag once to find them.
        cache: Packed store to make of the bags, and to read from while they do not change.

    Raises:
        BagError: There are no bags, or one of them is not usable.
        LabelError: The table is unreadable or does not fit the bags.
    """
    folder = Path(folder)
    # Slides that exist but are not usable, whose labels are no labels without a slide.
    unusable: set[str] = set()
    if is_store(folder):
        store = PackedStore.open(folder)
        dataset = store.dataset()
        unusable = set(store.index.slide_ids)
        if on_bad == "skip":
            dataset = _without_unreadable(dataset)
    elif is_packed_npz(folder):
        dataset = read_packed_npz(folder)
    else:
        dataset = _open_files(find_bag_files(folder), folder, on_bad)
        unusable = set(dataset.source.slide_ids)
        if cache is not None:
            dataset = _through_cache(dataset, Path(cache), on_bad)
        elif on_bad == "skip":
            dataset = _without_unreadable(dataset)
    if labels is None:
        if not ordinal or not dataset.target.names:
            return dataset
        names = dataset.target.names if classes is None else tuple(classes)
        return dataset.with_target(OrdinalTarget(names))
    where = str(labels) if isinstance(labels, str | Path) else "the labels"
    columns = {
        "slide_column": slide_column,
        "label_column": label_column,
        "case_column": case_column,
    }
    if isinstance(labels, str | Path):
        patients = None if slide_table is None else Path(slide_table)
        labels = read_labels(Path(labels), **columns, slide_table=patients)
    elif not isinstance(labels, LabelTable):
        labels = memory_labels(labels, **columns)
    return label_bags(dataset, labels, where, classes, unusable, on_mismatch, ordinal=ordinal)


def label_bags(
    dataset: BagDataset,
    labels: LabelTable,
    where: str,
    classes: Sequence[str] | None = None,
    unusable: Collection[str] = (),
    on_mismatch: Literal["error", "skip"] = "error",
    *,
    ordinal: bool = False,
) -> BagDataset:
    """Give bags the labels of a table.

    Args:
        dataset: The bags.
        labels: The table.
        where: Place of the table, for messages.
        classes: Order of the classes; see `class_order` for the order without it.
        unusable: Slides without a bag that may have a label.
        on_mismatch: Whether to refuse or to leave out slides without a label and labels without
            a slide.
        ordinal: Whether the classes are ordered, as of `read_bags`.

    Raises:
        LabelError: The labels do not fit the bags, or are no classes.
    """
    dataset = _match(dataset, labels, unusable, on_mismatch, where)
    rows = [labels.row(slide_id) for slide_id in dataset.slide_ids]
    if classes is None and labels.doubt:
        column = f" in the column '{labels.column}'" if labels.column else ""
        raise LabelError(
            f"Expected classes{column}, but {labels.doubt} ({where}). Correct the labels, name "
            "another column (`label_column`), or, if these are classes, give them in their order "
            "as `classes`."
        )
    texts = [row.label for row in rows]
    texts = texts if classes is None else list(spelt_as(texts, classes))
    target = ClassTarget.of(texts, classes, ordinal=ordinal)
    return replace(
        dataset,
        case_ids=tuple(row.case_id for row in rows),
        labels=tuple(map(target.encode, texts)),
        target=target,
    )


def is_packed_npz(path: Path) -> bool:
    """Return whether a file is a `.npz` with several bags, by its list of arrays alone."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "offsets.npy" in archive.namelist()
    except Exception:  # noqa: BLE001 (whatever an archive is damaged by; reading it says so)
        return False


def read_packed_npz(path: Path) -> BagDataset:
    """Read a `.npz` file of many bags, as the classic MIL sets have it, into memory.

    Args:
        path: `.npz` with `features` (all instances), `offsets` (where each bag begins, and the
            end) and optionally `labels`, `instance_labels` and `slide_ids`.

    Raises:
        BagError: The file is damaged, or its arrays do not fit together.
    """
    with damage_as(BagError, "packed bags", path, "Write them again."):
        return _packed_bags(path, load_npz(path))


def _packed_bags(path: Path, arrays: Mapping[str, NDArray[Any]]) -> BagDataset:
    absent = sorted({"features", "offsets"} - arrays.keys())
    if absent:
        raise BagError(
            f"Expected arrays 'features' and 'offsets', but got {sorted(arrays)} ({path}). "
            f"Add {' and '.join(absent)}."
        )
    features, offsets = arrays["features"], arrays["offsets"]
    fits = (
        features.ndim == 2
        and offsets.ndim == 1
        and offsets.dtype.kind in "iu"
        and len(offsets) > 1
        and offsets[0] == 0
        and offsets[-1] == len(features)
        and bool((np.diff(offsets.astype(np.int64)) >= 0).all())
    )
    if not fits:
        raise BagError(
            f"Expected offsets that rise from 0 to the number of rows of 'features', but got "
            f"{offsets.shape} offsets for features of shape {features.shape} ({path}). "
            "Write offsets[b] as the first row of bag b."
        )
    count = len(offsets) - 1
    bounds = list(pairwise(offsets.tolist()))
    width = len(str(count - 1))
    names = [f"{path.stem}-{b:0{width}d}" for b in range(count)]
    instance_labels = arrays.get("instance_labels")
    try:
        return BagDataset.from_arrays(
            [features[start:end] for start, end in bounds],
            arrays.get("labels"),
            slide_ids=arrays["slide_ids"].astype(str).tolist() if "slide_ids" in arrays else names,
            instance_labels=None
            if instance_labels is None
            else [instance_labels[start:end] for start, end in bounds],
        )
    except BagError as error:
        raise type(error)(f"{path}: {error}") from None


def _open_files(files: list[BagFile], folder: Path, on_bad: Literal["error", "skip"]) -> BagDataset:
    _refuse_duplicates(files, folder)
    source = FolderSource(files)
    usable: list[str] = []
    empty: list[str] = []
    bad: list[tuple[str, str]] = []
    for slide_id in source.slide_ids:
        try:
            size = source.header(slide_id).num_instances
        except BagError as error:
            bad.append((slide_id, str(error)))
        else:
            (usable if size else empty).append(slide_id)
    if on_bad == "skip":
        other = of_other_width({s: source.header(s).feature_dim for s in usable})
        usable = [slide_id for slide_id in usable if slide_id not in other]
        bad += other.items()
    if bad and on_bad == "error":
        raise BagError(_bad_message(bad, len(files)))
    if not usable:
        raise BagError(
            f"Expected at least one usable bag, but got {len(empty)} empty and {len(bad)} damaged "
            f"ones ({folder}). Extract the slides again."
        )
    _warn_skipped(bad, len(files))
    if empty:
        warnings.warn(
            f"{len(empty)} of {len(files)} slides have no instances and are left out: "
            f"{listed(empty)} ({folder}).",
            EmptySlideWarning,
            stacklevel=3,
        )
    refuse_mixed_dims(source, usable)
    return BagDataset(source, tuple(usable), tuple(usable), labels=(None,) * len(usable))


def _refuse_duplicates(files: list[BagFile], folder: Path) -> None:
    seen: dict[str, str] = {}
    for file in files:
        first = seen.setdefault(file.slide_id, file.path.name)
        if first != file.path.name:
            raise BagError(
                f"Expected one file a slide, but '{file.slide_id}' has '{first}' and "
                f"'{file.path.name}' ({folder}). Move one kind of file elsewhere."
            )


def _bad_message(bad: list[tuple[str, str]], count: int) -> str:
    return (
        f"Expected usable bags, but got {len(bad)} of {count} that are not: "
        f"{listed([slide_id for slide_id, _ in bad])}. Extract them again, or leave them out "
        f'with `on_bad="skip"`. The first: {bad[0][1]}'
    )


def _warn_skipped(bad: list[tuple[str, str]], count: int) -> None:
    if bad:
        warnings.warn(
            f"{len(bad)} of {count} slides are not usable and are left out: "
            f"{listed([slide_id for slide_id, _ in bad])}. The first: {bad[0][1]}",
            SkippedSlideWarning,
            stacklevel=4,
        )


def _without_unreadable(dataset: BagDataset) -> BagDataset:
    good, bad = [], []
    for slide_id in dataset.slide_ids:
        try:
            _read_whole(dataset.source, slide_id)
            good.append(slide_id)
        except BagError as error:
            bad.append((slide_id, str(error)))
    if not good:
        raise BagError(_bad_message(bad, len(dataset)))
    _warn_skipped(bad, len(dataset))
    return dataset.subset(good)


def _read_whole(source: BagSource, slide_id: str) -> None:
    if isinstance(source, PackedStore):
        source.checked(slide_id)
    else:
        source.read(slide_id)


def _through_cache(
    dataset: BagDataset, cache: Path, on_bad: Literal["error", "skip"]
) -> BagDataset:
    try:
        store = PackedStore.open(cache) if is_store(cache) else None
    except BagError:
        store = None  # a damaged cache is packed again from its sources
    if store is not None and not store.matches(dataset):
        store = None
    # A cache made with "skip" lacks bags that are an error now: packing again reports them.
    if store is None or (store.index.left_out and on_bad == "error"):
        store = pack_bags(dataset, cache, overwrite=True, on_bad=on_bad)
    _warn_skipped([(s.slide_id, s.reason) for s in store.index.left_out], len(dataset))
    return store.dataset()


def _match(
    dataset: BagDataset,
    table: LabelTable,
    unusable: Collection[str],
    on_mismatch: Literal["error", "skip"],
    where: str,
) -> BagDataset:
    labelled = [slide_id for slide_id in dataset.slide_ids if slide_id in table]
    if not labelled:
        raise LabelError(
            f"Expected labels of slides such as '{dataset.slide_ids[0]}', but got only such as "
            f"{listed(table.slide_ids, 1)} ({where}). Name another column with `slide_column`."
        )
    unlabelled = [slide_id for slide_id in dataset.slide_ids if slide_id not in table]
    present = {*dataset.slide_ids, *unusable}
    absent = [slide_id for slide_id in table.slide_ids if slide_id not in present]
    problems = " and ".join(
        f"{len(slides)} {what} ({listed(slides)})"
        for slides, what in (
            (unlabelled, "slides without a label"),
            (absent, "labels without a slide"),
        )
        if slides
    )
    if problems and on_mismatch == "error":
        raise LabelError(
            f"Expected a label for every slide and a slide for every label, but got {problems} "
            f"({where}). Correct the table, or leave them out with "
            '`on_mismatch="skip"`.'
        )
    if problems:
        warnings.warn(f"Left out: {problems} ({where}).", SkippedSlideWarning, stacklevel=4)
    return dataset.subset(labelled)
