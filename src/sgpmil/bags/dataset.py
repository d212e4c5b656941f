"""Data sets: bags with labels, read one at a time on demand."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from torch import Tensor

from sgpmil.bags.bag import Bag
from sgpmil.bags.files import refuse_unfit_names
from sgpmil.bags.labels import LabelTable
from sgpmil.bags.memory_labels import MemoryLabels
from sgpmil.bags.sources import BagSource, MemorySource, PartSource
from sgpmil.bags.tables import listed
from sgpmil.bags.target import ClassTarget, Label, Target
from sgpmil.errors import BagError, LabelError
from sgpmil.notebook import MOST_ROWS, counted, html_table

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData
    from torchmil.datasets import ProcessedMILDataset


@dataclass(frozen=True, slots=True)
class BagDataset:
    """A sequence of labelled bags.

    Args:
        source: Source of the bags.
        slide_ids: Slides of the data set, in order.
        case_ids: Patient of each slide.
        labels: Label of each slide; None where unknown.
        target: Meaning of the labels; a target without names where they are unknown.

    Raises:
        BagError: There are no slides, a slide is named twice, or a name cannot be a file's.

    Example:
        >>> import numpy as np
        >>> bags = BagDataset.from_arrays([np.ones((3, 2)), np.ones((1, 2))], labels=[0, 1])
        >>> len(bags), bags.feature_dim, bags[1].label
        (2, 2, 1)
    """

    source: BagSource
    slide_ids: tuple[str, ...]
    case_ids: tuple[str, ...]
    labels: tuple[Label | None, ...]
    target: Target = field(default_factory=ClassTarget)

    def __post_init__(self) -> None:
        if not self.slide_ids:
            raise BagError("Expected at least one bag in a data set, but got none.")
        repeated = [s for s, count in Counter(self.slide_ids).items() if count > 1]
        if repeated:
            raise BagError(
                f"Expected each slide once, but got {len(repeated)} more than once: "
                f"{listed(repeated)}. Rename or remove the copies."
            )
        refuse_unfit_names(self.slide_ids, BagError, "the data set")
        unfit = [s for s in self.slide_ids if s in (".", "..") or Path(s).name != s]
        if unfit:
            raise BagError(
                f"Expected slide names that can be file names, but got {len(unfit)} that cannot: "
                f"{listed(unfit)}. Rename them."
            )

    @staticmethod
    def from_arrays(
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
    ) -> "BagDataset":
        """Make a data set of arrays in memory.

        Args:
            features: Instances of each bag, an array or tensor of shape (instances, features); or
                a dictionary of them by the names of the bags.
            labels: Label of each bag: a class index where `class_names` are given, otherwise
                any number or text, of which `class_order` makes the classes. None: unknown. Of
                named bags, also a dictionary from name to label, or a DataFrame or Series, by the
                rules of `sgpmil.read_bags`.
            slide_ids: Name of each bag; "bag-0", "bag-1", ... where not given.
            case_ids: Patient of each bag; the bag itself where not given.
            class_names: Name of each class.
            ordinal: Whether the classes have an order, as of `read_bags`.
            instance_labels: Class of each instance, an array a bag; None where unknown.
            coords: Top-left corner of each instance, an array a bag; None where unknown.
            patch_size: Side of every instance in the unit of the coordinates, or a dictionary of
                sides by the names of the bags.

        Raises:
            BagError: A bag is empty or not finite, or their numbers of features differ.
            LabelError: A label is not among the classes.

        Example:
            >>> import numpy as np
            >>> arrays = {"s1": np.ones((3, 2)), "s2": np.zeros((1, 2))}
            >>> BagDataset.from_arrays(arrays, {"s1": "tumor", "s2": "normal"}).labels
            (1, 0)
        """
        from sgpmil.bags.memory_bags import bags_from_arrays

        return bags_from_arrays(
            features,
            labels,
            slide_ids=slide_ids,
            case_ids=case_ids,
            class_names=class_names,
            ordinal=ordinal,
            instance_labels=instance_labels,
            coords=coords,
            patch_size=patch_size,
        )

    @staticmethod
    def from_anndata(
        data: Any,
        labels: MemoryLabels | None = None,
        *,
        features: str | None = None,
        coords: str = "spatial",
        slide_column: str | None = None,
        label_column: str | None = None,
        case_column: str | None = None,
        classes: Sequence[str] | None = None,
    ) -> "BagDataset":
        """Make a data set of AnnData, whose rows are instances; it is held in memory.

        Slides, patients and labels are columns of ``obs``, found by their usual names
        (``slide_id``, ``slide_name``, …). A label and a patient must be the same in all rows of a
        slide. The columns ``instance_label`` and ``patch_size`` are used where present; so is the
        tile size that LazySlide writes.

        Args:
            data: An AnnData of one or more slides, or a dictionary of AnnData by slide.
            labels: Labels of the slides, where ``obs`` has none: a DataFrame, a Series or a
                dictionary, as of `sgpmil.read_bags`.
            features: Key of ``obsm`` that has the features; ``X`` where not given.
            coords: Key of ``obsm`` that has the top-left corners, where present.
            slide_column: Column of slide names, where its name is not a usual one.
            label_column: Column of labels, where its name is not a usual one.
            case_column: Column of patients, where its name is not a usual one.
            classes: Order of the classes; see `class_order` for the order without it.

        Raises:
            BagError: There are no features, or they are not usable.
            LabelError: A column is not found, or the labels do not fit the slides.
        """
        from sgpmil.bags.anndata_bags import from_anndata

        return from_anndata(
            data,
            labels,
            features=features,
            coords=coords,
            slide_column=slide_column,
            label_column=label_column,
            case_column=case_column,
            classes=classes,
        )

    def to_anndata(self) -> "AnnData":
        """Put all bags into one AnnData, a row an instance; `from_anndata` reads it back.

        ``X`` has the features, ``obs`` the columns ``slide_id``, ``case_id`` and, where known,
        ``label``, ``instance_label`` and ``patch_size``, ``obsm["spatial"]`` the top-left corners
        where every bag has them. One slide is ``bags.subset(["its name"]).to_anndata()``.

        Raises:
            MissingPartError: The package anndata is not installed.
        """
        from sgpmil.bags.anndata_bags import to_anndata

        return to_anndata(self)

    @staticmethod
    def from_torchmil(
        dataset: Any,
        *,
        class_names: Sequence[str] | None = None,
        slide_ids: Sequence[str] | None = None,
    ) -> "BagDataset":
        """Make a data set of torchmil's, which is read into memory.

        Coordinates of data sets that divide them by the side of a patch (``patch_size``, those of
        slides) are multiplied by it again. What torchmil rounds away is lost; `sgpmil.read_bags`
        reads the folder itself.

        Args:
            dataset: Any data set of ``torchmil.datasets``, or a list of bags: dictionaries with
                ``X`` and perhaps ``Y``, ``y_inst`` and ``coords``.
            class_names: Name of each class, by its number; numbers where not given.
            slide_ids: Name of each bag; torchmil's own where not given.

        Raises:
            BagError: There are no features.
            LabelError: A label is not one class.
        """
        from sgpmil.bags.torchmil_sets import from_torchmil

        return from_torchmil(dataset, class_names=class_names, slide_ids=slide_ids)

    def to_torchmil(self, folder: Path | str, **settings: Any) -> "ProcessedMILDataset":
        """Write the bags in torchmil's layout, and open them with its class.

        Args:
            folder: A new folder.
            settings: ``name`` (of the features), ``fold`` (slides of each part) and ``overwrite``,
                as of `sgpmil.bags.torchmil_sets.write_torchmil`, which needs no torchmil; others
                replace arguments of ``torchmil.datasets.ProcessedMILDataset``.

        Raises:
            BagError: The folder is not empty, or sides of patches differ.
            MissingPartError: The package torchmil is not installed.
        """
        from sgpmil.bags.torchmil_sets import to_torchmil

        return to_torchmil(self, folder, **settings)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count, *_ in self._class_rows())
        sizes = self.num_instances
        return (
            f"BagDataset({counted(len(self), 'slide')} of "
            f"{counted(len(set(self.case_ids)), 'patient')}, {min(sizes)} to {max(sizes)} "
            f"instances of {counted(self.feature_dim, 'feature')}; {counts})"
        )

    def _repr_html_(self) -> str:
        title = (
            f"{counted(len(self), 'slide')} of {counted(len(set(self.case_ids)), 'patient')}, "
            f"{counted(self.feature_dim, 'feature')} an instance"
        )
        columns = ["class", "slides", "patients", "instances a slide (median, least – most)"]
        rows = self._class_rows()
        return html_table(title, columns, rows[:MOST_ROWS], num_rows=len(rows))

    def _class_rows(self) -> list[tuple[str, int, int, str]]:
        """Describe each class: its name, slides, patients and sizes of bags."""
        sizes = self.num_instances
        rows = []
        for label in (*range(self.num_classes), None):
            found = [i for i, own in enumerate(self.labels) if own == label]
            if label is None and not found:
                continue
            counts = sorted(sizes[i] for i in found)
            spread = f"{median(counts):g}, {counts[0]} – {counts[-1]}" if counts else "–"
            name = "no label" if label is None else self.target.decode(label)
            rows.append((name, len(found), len({self.case_ids[i] for i in found}), spread))
        return rows

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class; none where labels are unknown."""
        return self.target.names

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 where labels are unknown."""
        return self.target.num_outputs

    @property
    def feature_dim(self) -> int:
        """Number of features D of an instance."""
        return self.source.header(self.slide_ids[0]).feature_dim

    @property
    def num_instances(self) -> tuple[int, ...]:
        """Number of instances of each bag, without reading the bags."""
        return tuple(self.source.header(slide_id).num_instances for slide_id in self.slide_ids)

    def __len__(self) -> int:
        return len(self.slide_ids)

    def __getitem__(self, index: int) -> Bag:
        """Read a bag with its label and case.

        Raises:
            BagError: Its file is damaged, or it holds NaN or infinity.
        """
        bag = self.source.read(self.slide_ids[index])
        label, case_id = self.labels[index], self.case_ids[index]
        if bag.label == label and bag.case_id == case_id:
            return bag
        return bag.labelled(label, case_id)

    def __iter__(self) -> Iterator[Bag]:
        return (self[i] for i in range(len(self)))

    def index(self, slide_id: str) -> int:
        """Return the position of a slide.

        Raises:
            BagError: The slide is not in the data set.
        """
        return self._positions([slide_id])[0]

    def subset(self, slide_ids: Sequence[str]) -> "BagDataset":
        """Return the data set of some slides, in the order given.

        Raises:
            BagError: A slide is not in the data set, or none is given.
        """
        rows = self._positions(slide_ids)
        return replace(
            self,
            slide_ids=tuple(slide_ids),
            case_ids=tuple(self.case_ids[i] for i in rows),
            labels=tuple(self.labels[i] for i in rows),
        )

    def only(self, slide_ids: Sequence[str]) -> "BagDataset":
        """Return the data set of some slides, through which the others cannot be read.

        Raises:
            BagError: A slide is not in the data set, or none is given.
        """
        some = self.subset(slide_ids)
        return replace(some, source=PartSource(self.source, slide_ids))

    def with_target(self, target: Target) -> "BagDataset":
        """Return the same data set with its labels in terms of another target.

        Raises:
            LabelError: A label is none of the target's.
        """
        translated: dict[Label | None, Label | None] = {None: None}
        unknown = []
        for label in sorted({label for label in self.labels if label is not None}):
            try:
                translated[label] = target.encode(self.target.decode(label))
            except LabelError:
                unknown.append(self.target.decode(label))
        if unknown:
            raise LabelError(
                f"Expected labels among {target}, but got {listed(unknown)}. Correct them, or use "
                "a model of these labels."
            )
        labels = tuple(translated[label] for label in self.labels)
        return replace(self, labels=labels, target=target)

    def in_memory(self, on_bag: Callable[[str], None] | None = None) -> "BagDataset":
        """Read every bag once and keep it.

        Args:
            on_bag: Called with the name of each slide that was read.

        Raises:
            BagError: A bag is damaged, or holds NaN or infinity.
        """
        bags = []
        for bag in self:
            bags.append(bag)
            if on_bag is not None:
                on_bag(bag.slide_id)
        # Bags keep the stamp of their files, so that the fingerprint stays the same.
        stamps = [self.source.stamp(slide_id) for slide_id in self.slide_ids]
        headers = [self.source.header(slide_id) for slide_id in self.slide_ids]
        return replace(self, source=MemorySource(bags, stamps, headers))

    def nbytes_estimate(self) -> int:
        """Estimate the bytes that the data set takes in memory, in float32."""
        headers = [self.source.header(slide_id) for slide_id in self.slide_ids]
        return sum(
            h.num_instances * (4 * h.feature_dim + 16 * h.has_coords + 8 * h.has_instance_labels)
            for h in headers
        )

    def slide_digests(self) -> dict[str, str]:
        """Return a digest of each slide: one of its bag, and one of its case and label.

        Neither depends on the place, the name or the times of the files.
        """
        found = {}
        for slide_id, case_id, label in zip(
            self.slide_ids, self.case_ids, self.labels, strict=True
        ):
            header = self.source.header(slide_id)
            content = (header.num_instances, header.feature_dim, self.source.stamp(slide_id))
            found[slide_id] = f"{_digest(content)}-{case_digest(case_id, label)}"
        return found

    def encoders(self) -> tuple[str, ...]:
        """Return the names of the patch encoders, where the bags say them."""
        headers = (self.source.header(slide_id) for slide_id in self.slide_ids)
        return tuple(sorted({header.encoder for header in headers if header.encoder is not None}))

    def fingerprint(self) -> str:
        """Return a digest that changes with classes, slides, cases, labels or content of bags."""
        content = repr((self.target.names, list(self.slide_digests().items())))
        return hashlib.sha256(content.encode()).hexdigest()

    def label_table(self) -> LabelTable:
        """Return the slides that have a label, with the names of their classes."""
        known = [i for i, label in enumerate(self.labels) if label is not None]
        return LabelTable(
            slide_ids=tuple(self.slide_ids[i] for i in known),
            case_ids=tuple(self.case_ids[i] for i in known),
            labels=tuple(self.target.decode(self.labels[i] or 0) for i in known),
        )

    def to_pandas(self) -> "pd.DataFrame":
        """Return the slides as a pandas DataFrame, without their features.

        Columns: ``slide_id``, ``case_id``, ``label`` (by name; None where unknown) and
        ``num_instances``.
        """
        import pandas as pd

        names = [None if label is None else self.target.decode(label) for label in self.labels]
        return pd.DataFrame(
            {
                "slide_id": self.slide_ids,
                "case_id": self.case_ids,
                "label": names,
                "num_instances": self.num_instances,
            }
        )

    def _positions(self, slide_ids: Sequence[str]) -> list[int]:
        position = {slide_id: i for i, slide_id in enumerate(self.slide_ids)}
        unknown = [slide_id for slide_id in slide_ids if slide_id not in position]
        if unknown:
            raise BagError(
                f"Expected slides of the data set, but got {len(unknown)} that are not among its "
                f"{len(self)}: {listed(unknown)}. Check their spelling."
            )
        return [position[slide_id] for slide_id in slide_ids]


def require_dataset(bags: object) -> None:
    """Refuse what is no data set.

    Raises:
        BagError: It is something else, such as a folder or a list of arrays.
    """
    if not isinstance(bags, BagDataset):
        raise BagError(
            f"Expected bags as a BagDataset, but got {type(bags).__name__}. Make one with "
            "sgpmil.read_bags(folder, labels=...) or "
            "sgpmil.BagDataset.from_arrays(arrays, labels)."
        )


def content_of(digest: str) -> str:
    """Return the part of a slide's digest that is of its features alone."""
    return digest.partition("-")[0]


def case_digest(case_id: str, label: Label | None) -> str:
    """Return the second part of a slide's digest: of its case and label."""
    return _digest([case_id, label])


def _digest(content: Any) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def of_other_width(widths: Mapping[str, int]) -> dict[str, str]:
    """Say of which slides the number of features is another than that of most, and why.

    Args:
        widths: Number of features of each slide. A slide without features is always another.

    Example:
        >>> list(of_other_width({"a": 4, "b": 4, "c": 5, "d": 0}))
        ['c', 'd']
        >>> of_other_width({"a": 4, "b": 5})  # as many of each: no one knows
        {}
    """
    counts = Counter(width for width in widths.values() if width > 0).most_common(2)
    if not counts:
        return dict.fromkeys(widths, "Expected at least one feature, but got none.")
    (most, count), *others = counts
    is_known = not others or others[0][1] < count
    return {
        slide_id: f"Expected {most} features in '{slide_id}', as in most slides, but got {width}. "
        "Extract it again, with their encoder."
        for slide_id, width in widths.items()
        if width == 0 or (is_known and width != most)
    }


def refuse_mixed_dims(source: BagSource, slide_ids: Sequence[str]) -> None:
    """Refuse bags whose numbers of features differ.

    Raises:
        BagError: They differ; the message names a slide of each kind.
    """
    slides: dict[int, list[str]] = {}
    for slide_id in slide_ids:
        slides.setdefault(source.header(slide_id).feature_dim, []).append(slide_id)
    if len(slides) > 1:
        kinds = sorted(slides.items(), key=lambda item: -len(item[1]))
        shown = "; ".join(f"{dim} in {len(ids)} slides ({listed(ids)})" for dim, ids in kinds)
        raise BagError(
            f"Expected bags of one number of features, but got {shown}. "
            "Use embeddings of one encoder."
        )
