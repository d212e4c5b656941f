"""Steps before training: inspect bags, pack them into a store, split slides into folds.

The commands ``sgpmil inspect``, ``pack`` and ``splits`` call these functions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.inspection import Inspection, inspect_folder
from sgpmil.bags.labels import LabelTable, read_labels
from sgpmil.bags.packing import pack_bags
from sgpmil.bags.reading import read_bags
from sgpmil.bags.split_files import read_splits, write_splits
from sgpmil.bags.splits import Fold, check_folds, make_kfold, make_monte_carlo
from sgpmil.bags.store import PackedStore
from sgpmil.errors import SettingsError
from sgpmil.options import Options
from sgpmil.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(Options):
    """Columns of a table of labels.

    Args:
        slide_column: Column of slide names.
        label_column: Column of labels.
        case_column: Column of patients.
        slide_table: Table of the slides of each patient, where patients have the
            labels (STAMP).
    """

    slide_column: str | None = None
    label_column: str | None = None
    case_column: str | None = None
    slide_table: Path | None = None

    def read_table(self, path: Path) -> LabelTable:
        """Read a table of labels by these columns."""
        return read_labels(
            path,
            slide_column=self.slide_column,
            label_column=self.label_column,
            case_column=self.case_column,
            slide_table=self.slide_table,
        )


@dataclass(frozen=True, kw_only=True)
class LabelOptions(ColumnOptions):
    """A folder of bags and the labels of its slides.

    Args:
        features: Folder of bag files (TRIDENT, CLAM, STAMP, slideflow, npy/npz; the format is
            detected), a packed store, or a .npz of many bags.
        labels: Table of labels (.csv, .tsv, .xlsx) with columns slide_id, label, case_id; or
            torchmil's folder of labels.
    """

    features: Path
    labels: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BagOptions(LabelOptions):
    """A folder of bags to read.

    Args:
        skip_missing: Leave out slides without a label and labels without a slide, instead of
            stopping.
        skip_bad: Leave out bags that are damaged, not finite, or of another width than
            most, instead of stopping.
    """

    skip_missing: bool = False
    skip_bad: bool = False

    def read_bags(
        self, classes: tuple[str, ...] | None = None, *, ordinal: bool = False
    ) -> BagDataset:
        """Open the bags with their labels, in an order of the classes."""
        return read_bags(
            self.features,
            self.labels,
            classes=classes,
            ordinal=ordinal,
            slide_column=self.slide_column,
            label_column=self.label_column,
            case_column=self.case_column,
            slide_table=self.slide_table,
            on_mismatch="skip" if self.skip_missing else "error",
            on_bad="skip" if self.skip_bad else "error",
        )


@dataclass(frozen=True, kw_only=True)
class InspectOptions(LabelOptions):
    """Options of `inspect_bags`.

    Args:
        ordinal: The classes are ordered, such as grades; their order must be known.
        order: The ordered classes from the lowest to the highest, such as NC,G3,G4,G5.
        folds: Number of folds that are to be made; each needs a patient of every class.
    """

    ordinal: bool = False
    order: tuple[str, ...] | None = None
    folds: int = 5


def inspect_bags(options: InspectOptions, *, show_progress: bool = False) -> Inspection:
    """Read every bag of a folder; report its contents and its problems.

    Raises:
        BagError: There are no bags at all.
        LabelError: The table of labels is unreadable.
    """
    table = None if options.labels is None else options.read_table(options.labels)
    with progress_bar("Reading", None, "slides", show=show_progress) as bar:
        return inspect_folder(
            options.features,
            table,
            classes=options.order,
            ordinal=options.ordinal or options.order is not None,
            num_folds=options.folds,
            on_bag=lambda _: bar.advance(),
        )


@dataclass(frozen=True, kw_only=True)
class PackOptions(BagOptions):
    """Options of `pack_folder`.

    Args:
        store: Packed store to write.
        classes: Order of the classes, such as normal,tumor; the last is the positive one.
        ordinal: The classes are ordered, such as grades; their order must be known or given.
        order: The ordered classes from the lowest to the highest, such as NC,G3,G4,G5.
        overwrite: Replace an existing store.
    """

    store: Path
    classes: tuple[str, ...] | None = None
    ordinal: bool = False
    order: tuple[str, ...] | None = None
    overwrite: bool = False


def pack_folder(options: PackOptions, *, show_progress: bool = False) -> PackedStore:
    """Pack bag files into one memory-mapped store that reads fast.

    Raises:
        BagError: There are no bags, one of them is not usable, or the store exists.
        LabelError: The labels do not fit the bags.
    """
    bags = options.read_bags(
        options.order or options.classes, ordinal=options.ordinal or options.order is not None
    )
    with progress_bar("Packing", len(bags), "slides", show=show_progress) as bar:
        return pack_bags(
            bags, options.store, overwrite=options.overwrite, on_bag=lambda _: bar.advance()
        )


@dataclass(frozen=True, kw_only=True)
class SplitOptions(ColumnOptions):
    """Options of `make_splits`.

    Args:
        labels: Table of labels (.csv, .tsv, .xlsx).
        out: Folder to write splits_k.csv to.
        check: Existing splits to check, instead of making new ones.
        folds: Number of folds.
        monte_carlo: Draw the test slides of every fold anew, instead of k-fold.
        val: Share of all slides to validate on.
        test: Share of all slides to test on, with ``monte_carlo``.
        seed: Seed; the same seed gives the same folds.
        shared_case: A patient in two parts of a fold is an error, or (published splits) a warning.
        overwrite: Replace existing splits.
    """

    labels: Path
    out: Path | None = None
    check: Path | None = None
    folds: int = 5
    monte_carlo: bool = False
    val: float = 0.15
    test: float = 0.2
    seed: int = 0
    shared_case: Literal["error", "warn"] = "error"
    overwrite: bool = False


def make_splits(options: SplitOptions) -> tuple[LabelTable, tuple[Fold, ...]]:
    """Make patient-grouped, stratified folds and write them, or check existing ones.

    Returns:
        The labels and the folds.

    Raises:
        SettingsError: There is neither a folder to write to nor splits to check.
        SplitError: The folds cannot be made, or a slide or patient is in two parts of a fold.
    """
    table = options.read_table(options.labels)
    if options.check is not None:
        folds = read_splits(options.check, table)
        return table, check_folds(folds, table, on_shared_case=options.shared_case)
    if options.out is None:
        raise SettingsError(
            "Expected a folder to write folds to (`out`), or splits to check (`check`)."
        )
    if options.monte_carlo:
        made = make_monte_carlo(
            table,
            num_folds=options.folds,
            val_fraction=options.val,
            test_fraction=options.test,
            seed=options.seed,
        )
    else:
        made = make_kfold(
            table, num_folds=options.folds, val_fraction=options.val, seed=options.seed
        )
    write_splits(made, options.out, overwrite=options.overwrite)
    return table, made
