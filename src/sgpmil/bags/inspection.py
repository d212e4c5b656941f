"""Inspection of a folder of bags before training.

Every bag is read, one at a time. What is wrong with it is noted, not raised.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from sgpmil.bags.class_scales import find_scale
from sgpmil.bags.dataset import of_other_width
from sgpmil.bags.labels import LabelTable
from sgpmil.bags.readers.formats import BagFile, find_bag_files
from sgpmil.bags.readers.raw import BagHeader
from sgpmil.bags.reading import is_packed_npz, read_packed_npz
from sgpmil.bags.sources import BagSource
from sgpmil.bags.splits import cases_of
from sgpmil.bags.store import PackedStore, is_store
from sgpmil.bags.tables import listed
from sgpmil.bags.target import ClassTarget, OrdinalTarget
from sgpmil.errors import BagError


@dataclass(frozen=True, slots=True)
class UnreadableSlide:
    """A slide whose file is damaged or has another number of features than most, and why."""

    slide_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    """Numbers of instances over the usable slides; zero where there is none."""

    smallest: int
    median: float
    largest: int
    total: int


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Numbers of slides and patients of a class.

    Args:
        name: Name of the class.
        num_slides: Number of its slides.
        num_patients: Number of patients with such a slide.
        num_divided: Number of patients whom folds divide as of this class: one with slides of
            several classes counts for the rarest.
    """

    name: str
    num_slides: int
    num_patients: int
    num_divided: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """Content and faults of a folder of bags.

    Args:
        folder: The folder.
        formats: Formats of its files.
        encoders: Names of the patch encoders, where stored.
        feature_dims: Numbers of features; more than one, each of as many slides, is an error.
        magnifications: Magnifications of the instances, where stored.
        patch_sizes: Sides of an instance in level-0 pixels, where stored.
        num_slides: Number of slides, usable or not.
        instances: Numbers of instances of the usable slides.
        missing: Labels without a slide.
        unlabelled: Slides without a label, where labels are given.
        duplicates: Slides that have several files.
        copies: Names of slides that share all features, a group each.
        empty: Slides without instances.
        unreadable: Slides whose files are damaged, or of another number of features than most.
        non_finite: Slides with NaN or infinity.
        num_usable: Number of usable slides.
        num_with_coords: Number of usable slides with coordinates.
        num_with_instance_labels: Number of usable slides with instance labels.
        class_counts: Numbers of usable slides and patients of each class, where labels are known.
        num_folds: Number of folds that are to be made.
        columns: Columns that the labels were read from, in a few words; empty where not of a table.
        doubt: Why the labels do not look like classes; empty where they do.
        order: What is known of an order of the classes, in a few words; empty where nothing is.
    """

    folder: Path
    formats: tuple[str, ...]
    encoders: tuple[str, ...]
    feature_dims: tuple[int, ...]
    magnifications: tuple[float, ...]
    patch_sizes: tuple[int, ...]
    num_slides: int
    instances: InstanceCounts
    missing: tuple[str, ...]
    unlabelled: tuple[str, ...]
    duplicates: tuple[str, ...]
    copies: tuple[tuple[str, ...], ...]
    empty: tuple[str, ...]
    unreadable: tuple[UnreadableSlide, ...]
    non_finite: tuple[str, ...]
    num_usable: int
    num_with_coords: int
    num_with_instance_labels: int
    class_counts: tuple[ClassCount, ...]
    num_folds: int = 5
    columns: str = ""
    doubt: str = ""
    order: str = ""

    @property
    def is_ready(self) -> bool:
        """Return whether the bags can be trained on as they are; empty slides are left out."""
        faults = (self.missing, self.unlabelled, self.duplicates, self.unreadable, self.non_finite)
        is_one_task = len(self.feature_dims) == 1 and len(self.class_counts) != 1
        return not any(faults) and is_one_task and not self.doubt and not self.rare_classes

    @property
    def rare_classes(self) -> tuple[ClassCount, ...]:
        """Classes with slides, but with fewer patients than folds: no such folds can be made."""
        return tuple(count for count in self.class_counts if 0 < count.num_divided < self.num_folds)


@dataclass(frozen=True, slots=True)
class _Slide:
    """A slide of the folder; `read` gives its header, and a digest where features are finite."""

    slide_id: str
    bag_format: str | None
    read: Callable[[], tuple[BagHeader, bytes | None]]


def inspect_folder(
    folder: Path,
    labels: LabelTable | None = None,
    *,
    classes: Sequence[str] | None = None,
    ordinal: bool = False,
    num_folds: int = 5,
    on_bag: Callable[[str], None] | None = None,
) -> Inspection:
    """Read every bag of a folder and report its content and faults.

    Args:
        folder: Folder of bag files, a packed store, or a `.npz` file of many bags.
        labels: Labels to compare the slides with; those stored with the bags where not given.
        classes: Order of the classes, as of `read_bags`.
        ordinal: Whether the classes are ordered, as of `read_bags`.
        num_folds: Number of folds that are to be made; each needs a patient of every class.
        on_bag: Called with the name of each slide that was read.

    Raises:
        BagError: There are no bags at all.
        LabelError: The classes lack one of the labels, or their order is asked for and not known.
    """
    slides, stored_labels = _slides(folder)
    labels = labels if labels is not None else stored_labels
    usable: list[tuple[str, BagHeader]] = []
    empty: list[str] = []
    non_finite: list[str] = []
    unreadable: list[UnreadableSlide] = []
    same: dict[bytes, list[str]] = {}
    for slide in slides:
        try:
            header, digest = slide.read()
        except BagError as error:
            unreadable.append(UnreadableSlide(slide.slide_id, str(error)))
        else:
            if header.num_instances == 0:
                empty.append(slide.slide_id)
            elif digest is not None:
                usable.append((slide.slide_id, header))
                same.setdefault(digest, []).append(slide.slide_id)
            else:
                non_finite.append(slide.slide_id)
        if on_bag is not None:
            on_bag(slide.slide_id)
    other = of_other_width({slide_id: header.feature_dim for slide_id, header in usable})
    usable = [(slide_id, header) for slide_id, header in usable if slide_id not in other]
    unreadable += [UnreadableSlide(slide_id, reason) for slide_id, reason in other.items()]
    names = [slide.slide_id for slide in slides]
    headers = [header for _, header in usable]
    found: Counter[str] = Counter()
    patients: Counter[str] = Counter()
    divided: Counter[str] = Counter()
    target = None
    if labels is not None:
        known = labels.subset([name for name in dict(usable) if name in labels])
        found = Counter(known.labels)
        label_of, cases = dict(zip(known.slide_ids, known.labels, strict=True)), cases_of(known)
        patients = Counter(
            label for case in cases for label in {label_of[s] for s in case.slide_ids}
        )
        divided = Counter(case.label for case in cases)
        is_ordinal = ordinal and not labels.doubt
        target = ClassTarget.of(found, classes, ordinal=is_ordinal)
    return Inspection(
        folder=folder,
        formats=tuple(sorted({s.bag_format for s in slides if s.bag_format is not None})),
        encoders=tuple(sorted({h.encoder for h in headers if h.encoder is not None})),
        feature_dims=tuple(sorted({h.feature_dim for h in headers})),
        magnifications=tuple(
            sorted({h.magnification for h in headers if h.magnification is not None})
        ),
        patch_sizes=tuple(sorted({h.patch_size for h in headers if h.patch_size is not None})),
        num_slides=len(set(names)),
        instances=_instance_counts([h.num_instances for h in headers]),
        missing=_without(() if labels is None else labels.slide_ids, names),
        unlabelled=() if labels is None else _without(names, labels.slide_ids),
        duplicates=tuple(name for name, count in Counter(names).items() if count > 1),
        copies=tuple(tuple(names) for names in same.values() if len(set(names)) > 1),
        empty=tuple(empty),
        unreadable=tuple(unreadable),
        non_finite=tuple(non_finite),
        num_usable=len(headers),
        num_with_coords=sum(h.has_coords for h in headers),
        num_with_instance_labels=sum(h.has_instance_labels for h in headers),
        class_counts=() if target is None else _class_counts(found, patients, divided, target),
        num_folds=num_folds,
        columns="" if labels is None else labels.columns,
        doubt="" if labels is None else labels.doubt,
        order=""
        if target is None or labels is None or labels.doubt
        else _order(target, given=classes is not None),
    )


def _slides(folder: Path) -> tuple[list[_Slide], LabelTable | None]:
    if is_store(folder):
        dataset, kind = PackedStore.open(folder).dataset(), "packed store"
    elif is_packed_npz(folder):
        dataset, kind = read_packed_npz(folder), "packed npz"
    else:
        files = find_bag_files(folder)
        return [_Slide(f.slide_id, f.format, partial(_read_file, f)) for f in files], None
    table, source = dataset.label_table(), dataset.source
    slides = [_Slide(s, kind, partial(_read_stored, source, s)) for s in source.slide_ids]
    return slides, table if len(table) else None


def _read_file(file: BagFile) -> tuple[BagHeader, bytes | None]:
    return file.peek(), _digest(file.read().features)


def _read_stored(source: BagSource, slide_id: str) -> tuple[BagHeader, bytes | None]:
    return source.header(slide_id), _digest(source.read(slide_id).features)


def _digest(features: Tensor) -> bytes | None:
    """Return a digest of features, by which copies are found; None where some are not finite."""
    # A sum is NaN or infinite if one entry is; a mask takes several times the memory of a bag.
    if not (torch.isfinite(features.sum(dim=1)).all() or torch.isfinite(features).all()):
        return None
    digest = blake2b(repr(tuple(features.shape)).encode())
    digest.update(features.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()


def _instance_counts(counts: Sequence[int]) -> InstanceCounts:
    if not counts:
        return InstanceCounts(0, 0.0, 0, 0)
    return InstanceCounts(min(counts), float(median(counts)), max(counts), sum(counts))


def _without(names: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    left_out = set(others)
    return tuple(dict.fromkeys(name for name in names if name not in left_out))


def _class_counts(
    slides: Mapping[str, int],
    patients: Mapping[str, int],
    divided: Mapping[str, int],
    target: ClassTarget,
) -> tuple[ClassCount, ...]:
    return tuple(
        ClassCount(name, slides[name], patients[name], divided[name]) for name in target.names
    )


def _order(target: ClassTarget, *, given: bool) -> str:
    """Say in which order the classes are, where they have one, or look as if they had."""
    scale = find_scale(target.names)
    order = " < ".join(target.names)
    if isinstance(target, OrdinalTarget):
        origin = "as given" if given or scale is None else f"known {scale.kind}"
        return f"{order} ({origin})"
    if scale is not None and scale.equals:
        return f"{listed(scale.equals)} mean the same ({scale.kind}): join them in the table"
    # Many numbers are a measurement, such as days, rather than grades.
    if scale is None or not 3 <= len(target.names) <= 20:
        return ""
    return f"looks like {order} ({scale.kind}): pass `ordinal=True`"
