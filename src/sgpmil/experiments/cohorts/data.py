"""Data of a cohort's study: the bags of a user's folder, and the folds of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.labels import LabelTable, clean_slide_id, find_column
from sgpmil.bags.reading import is_packed_npz, read_bags
from sgpmil.bags.split_files import read_splits
from sgpmil.bags.splits import Case, Fold, cases_of, check_folds, divide, make_monte_carlo
from sgpmil.bags.steps import LabelOptions
from sgpmil.bags.store import is_store
from sgpmil.bags.tables import listed, read_table
from sgpmil.errors import LabelError, SplitError
from sgpmil.experiments.cohorts.cohort import Cohort

_TEST_PREFIX = "test_"
_PART_NAMES = {"training": "train", "validation": "val", "testing": "test"}


@dataclass(frozen=True, slots=True, eq=False)
class CohortData:
    """Bags and folds of a study.

    Args:
        bags: Labelled bags.
        folds: The folds.
        reading: Arguments of `sgpmil.read_bags` by name, for commands that read the bags again.
    """

    bags: BagDataset
    folds: tuple[Fold, ...]
    reading: dict[str, object]


def read_cohort(
    cohort: Cohort,
    options: LabelOptions,
    *,
    splits: Path | None = None,
    store: Path | None = None,
    skip_missing: bool = False,
) -> CohortData:
    """Read the bags of a cohort, with its classes in their order, and its folds.

    Args:
        cohort: The cohort.
        options: Places of features and labels.
        splits: Split files; without them, folds are made by the cohort's own rule.
        store: Packed store to make of a folder of files, and to read from.
        skip_missing: Leave out slides without a label or without a bag.

    Raises:
        BagError: There are no bags, or one is not usable.
        LabelError: The labels do not fit the bags, or are not of the cohort.
        SplitError: The folds do not fit, or leak.
    """
    packed = is_store(options.features) or is_packed_npz(options.features)
    table = read_cohort_labels(cohort, options)
    bags = read_bags(
        options.features,
        table,
        classes=cohort.classes,
        ordinal=cohort.ordinal,
        on_mismatch="skip" if skip_missing else "error",
        cache=None if packed else store,
    )
    folds = check_folds(
        cohort_folds(cohort, table, splits, options.labels),
        bags.label_table(),
        allow_missing=skip_missing,
        on_shared_case=cohort.shared_case,
    )
    reading = {
        "folder": str((options.features if packed or store is None else store).resolve()),
        "labels": None if options.labels is None else str(options.labels.resolve()),
        "classes": list(cohort.classes),
        "ordinal": cohort.ordinal,
        "label_column": table.column or None,
        "slide_column": options.slide_column,
        "case_column": options.case_column,
        "slide_table": None if options.slide_table is None else str(options.slide_table.resolve()),
        "on_mismatch": "skip" if skip_missing else "error",
    }
    return CohortData(bags, folds, {k: v for k, v in reading.items() if v not in (None, False)})


def read_cohort_labels(cohort: Cohort, options: LabelOptions) -> LabelTable:
    """Read the table of labels, whose classes must be the cohort's.

    Raises:
        LabelError: There is no table, it cannot be read, or a label is not of the cohort.
    """
    if options.labels is None:
        raise LabelError(
            f"Expected the table of labels of {cohort.title}, but got none. Give it with `labels`."
        )
    named = options
    if options.label_column is None and options.labels.is_file():
        columns = read_table(options.labels).columns
        if cohort.label_column in columns:
            named = replace(options, label_column=cohort.label_column)
    table = named.read_table(options.labels)
    strange = sorted(set(table.labels) - set(cohort.classes))
    if strange:
        raise LabelError(
            f"Expected the classes {', '.join(cohort.classes)} of {cohort.title} in "
            f"{options.labels}, but got {listed(strange)} in the column "
            f"'{table.column}'. Name another column with `label_column`."
        )
    return table


def cohort_folds(
    cohort: Cohort, table: LabelTable, splits: Path | None, labels: Path | None
) -> tuple[Fold, ...]:
    """Read the folds of the paper, or make folds of the same kind.

    Args:
        cohort: The cohort.
        table: Slides with their labels and patients.
        splits: Split files; of more than the paper uses, the first.
        labels: The table's file, for cohorts whose table names the part of each slide.

    Raises:
        SplitError: There are no folds, or none can be made.
    """
    if splits is not None:
        return read_splits(splits, table)[: cohort.folds]
    match cohort.splitting:
        case "official test":
            return _with_official_test(cohort, table)
        case "column":
            return (_of_column(cohort, table, labels),)
        case "patients":
            _, val, test = (part / sum(cohort.parts) for part in cohort.parts)
            return make_monte_carlo(
                table,
                num_folds=cohort.folds,
                val_fraction=val,
                test_fraction=test,
                seed=cohort.seeds[0],
            )


def _with_official_test(cohort: Cohort, table: LabelTable) -> tuple[Fold, ...]:
    test = tuple(s for s in table.slide_ids if s.startswith(_TEST_PREFIX))
    others = [s for s in table.slide_ids if not s.startswith(_TEST_PREFIX)]
    if not test or not others:
        raise SplitError(
            f"Expected slides named {_TEST_PREFIX}* among those of {cohort.title}, which are its "
            f"official test slides, but got {len(test)} of {len(table)}. Give split files "
            "(`splits`)."
        )
    # Each slide by itself: the published table has one placeholder for the patients of them all.
    own = table.subset(others)
    cases = cases_of(LabelTable(own.slide_ids, own.slide_ids, own.labels))
    share = cohort.parts[1] / (cohort.parts[0] + cohort.parts[1])
    folds = []
    for number in range(cohort.folds):
        rng = np.random.default_rng([cohort.seeds[0], number])
        train, val = divide(cases, [1 - share, share], rng)
        folds.append(Fold(str(number), _names(train), _names(val), test))
    return tuple(folds)


def _names(cases: Sequence[Case]) -> tuple[str, ...]:
    return tuple(sorted(slide for case in cases for slide in case.slide_ids))


def _of_column(cohort: Cohort, table: LabelTable, labels: Path | None) -> Fold:
    content = None if labels is None or labels.is_dir() else read_table(labels)
    if content is None or cohort.split_column not in content.columns:
        raise SplitError(
            f"Expected the column '{cohort.split_column}' of the official parts of {cohort.title} "
            f"in {labels}, but there is none. Give split files (`splits`)."
        )
    parts: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    slides = content.column(find_column(content, "slide"))
    for slide, part in zip(slides, content.column(cohort.split_column), strict=True):
        name = _PART_NAMES.get(part.strip().casefold())
        slide_id = clean_slide_id(slide)
        if name is not None and slide_id in table:
            parts[name].append(slide_id)
    return Fold("0", *(tuple(parts[name]) for name in ("train", "val", "test")))
