"""Cross-validation folds, stratified by class, with all slides of a patient in one part."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from sgpmil.bags.labels import LabelRow, LabelTable, clean_slide_id
from sgpmil.bags.tables import listed
from sgpmil.errors import SplitError
from sgpmil.notebook import counted

Part = Literal["train", "val", "test"]
_PARTS: tuple[Part, ...] = ("train", "val", "test")


class PlaceholderCaseWarning(UserWarning):
    """One case id covers most slides, so it cannot name a patient."""


class MissingSlideWarning(UserWarning):
    """Slides of a fold were left out, as the caller asked."""


class UnusedSlideWarning(UserWarning):
    """Slides are in no part of a fold."""


class SharedCaseWarning(UserWarning):
    """A patient has slides in two parts of a fold."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The slides of one fold.

    Args:
        name: Name of the fold, its number as a rule.
        train: Slides to learn from.
        val: Slides to choose the best epoch by; may be empty.
        test: Slides to evaluate on.
    """

    name: str
    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]

    def part(self, name: Part) -> tuple[str, ...]:
        """Return the slides of a part.

        Example:
            >>> Fold("0", train=("a",), val=(), test=("b",)).part("test")
            ('b',)
        """
        return {"train": self.train, "val": self.val, "test": self.test}[name]


@dataclass(frozen=True, slots=True)
class Case:
    """A patient, whose slides must stay in one part.

    Args:
        case_id: Name of the patient.
        slide_ids: Slides of the patient, sorted.
        label: Class to stratify by: the rarest of its slides' classes.
    """

    case_id: str
    slide_ids: tuple[str, ...]
    label: str


def make_kfold(
    table: LabelTable, *, num_folds: int = 5, val_fraction: float = 0.15, seed: int = 0
) -> tuple[Fold, ...]:
    """Make folds such that each slide is in the test part of exactly one.

    Args:
        table: Slides with their cases and labels.
        num_folds: Number of folds.
        val_fraction: Share of all slides to validate on.
        seed: Fixes the folds, whatever the order of the table's rows.

    Raises:
        SplitError: The numbers are impossible, or a class has too few patients.
    """
    if num_folds < 2 or not 0 <= val_fraction < 1 - 1 / num_folds:
        raise SplitError(
            f"Expected at least 2 folds and a validation share below 1 - 1/folds, but got "
            f"{num_folds} folds and {val_fraction}. Change them."
        )
    _check_seed(seed)
    cases = cases_of(table)
    if num_folds > len(cases):  # before memory is taken for each
        raise SplitError(
            f"Expected at most {counted(len(cases), 'fold')}, as there are patients, but got "
            f"{num_folds}. Use fewer folds."
        )
    tested = divide(cases, [1 / num_folds] * num_folds, np.random.default_rng([seed, 0]))
    folds = []
    for number, test in enumerate(tested):
        rest = [case for part in tested if part is not test for case in part]
        val_share = val_fraction / (1 - 1 / num_folds)
        rng = np.random.default_rng([seed, 1 + number])
        rest.sort(key=lambda case: case.case_id)
        train, val = divide(rest, [1 - val_share, val_share], rng, optional=[1])
        folds.append(Fold(str(number), _slides(train), _slides(val), _slides(test)))
    return tuple(folds)


def make_monte_carlo(
    table: LabelTable,
    *,
    num_folds: int = 10,
    val_fraction: float = 0.15,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> tuple[Fold, ...]:
    """Draw folds independently of one another.

    Args:
        table: Slides with their cases and labels.
        num_folds: Number of folds.
        val_fraction: Share of all slides to validate on.
        test_fraction: Share of all slides to test on.
        seed: Fixes the folds, whatever the order of the table's rows.

    Raises:
        SplitError: The numbers are impossible, or a class has too few patients.
    """
    possible = val_fraction >= 0 and test_fraction > 0 and val_fraction + test_fraction < 1
    if num_folds < 1 or not possible:
        raise SplitError(
            f"Expected at least 1 fold and shares of validation and test that leave slides to "
            f"train on, but got {num_folds} folds, {val_fraction} and {test_fraction}. Change them."
        )
    _check_seed(seed)
    cases = cases_of(table)
    shares = [1 - val_fraction - test_fraction, val_fraction, test_fraction]
    folds = []
    for number in range(num_folds):
        rng = np.random.default_rng([seed, number])
        train, val, test = divide(cases, shares, rng, optional=[1])
        folds.append(Fold(str(number), _slides(train), _slides(val), _slides(test)))
    return tuple(folds)


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise SplitError(f"Expected a seed of at least 0, but got {seed}. Use 0.")


def check_folds(
    folds: Sequence[Fold],
    table: LabelTable,
    *,
    allow_missing: bool = False,
    on_shared_case: Literal["error", "warn"] = "error",
) -> tuple[Fold, ...]:
    """Check that folds fit the labels and that no patient is in two parts.

    Args:
        folds: Folds to check.
        table: Slides with their cases and labels.
        allow_missing: Leave out slides that the table does not have, rather than refuse them.
        on_shared_case: Treatment of a patient with slides in two parts. Some published
            splits have one; "warn" accepts them as published.

    Returns:
        The folds, without the slides left out.

    Raises:
        SplitError: A slide is named twice or unknown, a part is empty, a patient is in two
            parts, or a class is evaluated that is not trained on.
    """
    if not folds:
        raise SplitError("Expected at least one fold, but got none.")
    case_of = _case_lookup(table, stacklevel=3)
    checked = tuple(_known_part(fold, table, allow_missing) for fold in folds)
    for fold in checked:
        _check_slides(fold)
        _check_cases(fold, case_of, on_shared_case)
        _check_classes(fold, table)
    unused = unused_slides(checked, table.slide_ids)
    if unused:
        warnings.warn(unused_text(unused, len(checked)), UnusedSlideWarning, stacklevel=2)
    return checked


def unused_slides(folds: Sequence[Fold], slide_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the slides that are in no part of a fold, by the fold's name; folds without none.

    Names are compared without the suffixes of slide files, as split files are read.

    Example:
        >>> unused_slides([Fold("0", train=("a",), val=(), test=("b",))], ["a", "b", "c"])
        {'0': ('c',)}
    """
    found = {}
    for fold in folds:
        used = {clean_slide_id(slide_id) for part in _PARTS for slide_id in fold.part(part)}
        left = tuple(slide_id for slide_id in slide_ids if clean_slide_id(slide_id) not in used)
        if left:
            found[fold.name] = left
    return found


def unused_text(unused: Mapping[str, Sequence[str]], num_folds: int) -> str:
    """Say which slides are in no part of a fold, in one or two sentences.

    Args:
        unused: Slides by fold, of `unused_slides`.
        num_folds: Number of all folds.

    Example:
        >>> unused_text({"0": ["c"]}, 2)
        "1 slide is in no part of fold 0: 'c'."
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, slides in unused.items():
        groups.setdefault(tuple(slides), []).append(name)
    sentences = []
    for slides, names in groups.items():
        folds = f"fold{'s' if len(names) > 1 else ''} {', '.join(names)}"
        where = "any fold" if len(names) == num_folds > 1 else folds
        count = f"{len(slides)} slides are" if len(slides) > 1 else "1 slide is"
        sentences.append(f"{count} in no part of {where}: {listed(slides)}.")
    return " ".join(sentences)


def _known_part(fold: Fold, table: LabelTable, allow_missing: bool) -> Fold:
    unknown = [s for part in _PARTS for s in fold.part(part) if s not in table]
    if unknown and not allow_missing:
        raise SplitError(
            f"Expected slides of the label table, but fold {fold.name} names {len(unknown)} it "
            f"does not have: {listed(unknown)}. Add their labels, or leave them out "
            "(`allow_missing=True`)."
        )
    if unknown:
        warnings.warn(
            f"Fold {fold.name} names {counted(len(unknown), 'slide')} left out here: "
            f"{listed(unknown)}.",
            MissingSlideWarning,
            stacklevel=4,
        )
    kept = {part: tuple(s for s in fold.part(part) if s in table) for part in _PARTS}
    return Fold(fold.name, **kept)


def _check_slides(fold: Fold) -> None:
    counts = Counter(slide_id for part in _PARTS for slide_id in fold.part(part))
    repeated = [slide_id for slide_id, count in counts.items() if count > 1]
    if repeated:
        raise SplitError(
            f"Expected each slide in one part, but fold {fold.name} names {len(repeated)} more "
            f"than once: {listed(repeated)}. Remove the repetitions."
        )
    empty = [part for part in ("train", "test") if not fold.part(part)]
    if empty:
        raise SplitError(
            f"Expected slides to train on and to test on, but fold {fold.name} has none in "
            f"'{empty[0]}'. Check that its slide names are those of the label table."
        )


def _check_cases(fold: Fold, case_of: dict[str, str], on_shared: Literal["error", "warn"]) -> None:
    for one, other in combinations(_PARTS, 2):
        cases = [{case_of[s] for s in fold.part(part)} for part in (one, other)]
        shared = sorted(cases[0] & cases[1])
        if not shared:
            continue
        found = (
            f"{len(shared)} patient{'s have' if len(shared) > 1 else ' has'} slides in both "
            f"'{one}' and '{other}' of fold {fold.name}: {listed(shared)}"
        )
        if on_shared == "error":
            raise SplitError(
                f"Expected each patient in one part, but {found}. Move their slides together, "
                'or accept the leak: `on_shared_case="warn"`.'
            )
        warnings.warn(found + ".", SharedCaseWarning, stacklevel=3)


def _check_classes(fold: Fold, table: LabelTable) -> None:
    trained = {table.row(slide_id).label for slide_id in fold.train}
    for part in ("val", "test"):
        unknown = sorted({table.row(s).label for s in fold.part(part)} - trained)
        if unknown:
            raise SplitError(
                f"Expected every class to be trained on, but got an unknown class in the {part} "
                f"split of fold {fold.name}: {listed(unknown)}. Move a slide of it to 'train'."
            )


def _case_lookup(table: LabelTable, stacklevel: int) -> dict[str, str]:
    """Return the patient of each slide, or the slide itself where cases are placeholders."""
    counts = Counter(table.case_ids).most_common(1)
    if counts and counts[0][1] >= max(10, len(table) / 2):
        case_id, count = counts[0]
        warnings.warn(
            f"Case '{case_id}' covers {count} of {len(table)} slides and cannot be one patient: "
            "each slide is taken as its own case.",
            PlaceholderCaseWarning,
            stacklevel=stacklevel,
        )
        return {slide_id: slide_id for slide_id in table.slide_ids}
    return dict(zip(table.slide_ids, table.case_ids, strict=True))


def _slides(cases: Sequence[Case]) -> tuple[str, ...]:
    return tuple(sorted(slide_id for case in cases for slide_id in case.slide_ids))


def cases_of(table: LabelTable) -> list[Case]:
    """Gather slides by patient, sorted by name so that the order of rows does not matter."""
    case_of = _case_lookup(table, stacklevel=4)
    rows: dict[str, list[LabelRow]] = {}
    for row in table:
        rows.setdefault(case_of[row.slide_id], []).append(row)
    frequency = Counter(table.labels)
    return [
        Case(
            case_id,
            tuple(sorted(row.slide_id for row in rows[case_id])),
            min((row.label for row in rows[case_id]), key=lambda label: (frequency[label], label)),
        )
        for case_id in sorted(rows)
    ]


def divide(
    cases: Sequence[Case],
    shares: Sequence[float],
    rng: np.random.Generator,
    *,
    optional: Sequence[int] = (),
) -> list[list[Case]]:
    """Divide patients into parts of given shares, each class by itself.

    Every part gets its share of each class's patients, to within one patient. Patients with many
    slides are dealt first, so that the numbers of slides follow the shares too.

    Args:
        cases: The patients.
        shares: Share of each part; they sum to one.
        rng: Random numbers.
        optional: Parts that may go without a class that has too few patients.

    Raises:
        SplitError: A class has fewer patients than there are parts that need one.
    """
    parts: list[list[Case]] = [[] for _ in shares]
    needed = [part for part, share in enumerate(shares) if share > 0 and part not in optional]
    wished = [part for part in optional if shares[part] > 0]
    for label in sorted({case.label for case in cases}):
        members = [case for case in cases if case.label == label]
        if len(members) < len(needed):
            raise SplitError(
                f"Expected at least {counted(len(needed), 'patient')} of class '{label}', one for "
                f"each part of the split, but got {len(members)}. Use fewer folds, or leave the "
                "class out."
            )
        sizes = [sum(len(case.slide_ids) for case in part) for part in parts]
        quotas = _quotas(len(members), shares, [*needed, *wished], sizes)
        for part, dealt in zip(parts, _deal(members, quotas, rng), strict=True):
            part.extend(dealt)
    return parts


def _quotas(
    count: int, shares: Sequence[float], first: Sequence[int], sizes: Sequence[int]
) -> list[int]:
    """Apportion patients by largest remainder, with one for each of `first` while they last."""
    exact = [count * share for share in shares]
    quotas = [int(value + 1e-9) for value in exact]
    for part in first[:count]:
        quotas[part] = max(quotas[part], 1)
    while sum(quotas) > count:
        # Some part was rounded up to one patient: the part with most patients gives one.
        richest = max(range(len(quotas)), key=lambda p: (quotas[p], quotas[p] - exact[p]))
        quotas[richest] -= 1
    while sum(quotas) < count:
        # Equal remainders go to the part that is smallest so far, so that totals stay even.
        poorest = max(
            (p for p in range(len(quotas)) if shares[p] > 0),
            key=lambda p: (round(exact[p] - quotas[p], 9), -sizes[p] / shares[p]),
        )
        quotas[poorest] += 1
    return quotas


def _deal(
    members: Sequence[Case], quotas: Sequence[int], rng: np.random.Generator
) -> list[list[Case]]:
    """Deal patients to parts, the largest first, to the part that lacks most of its share."""
    shuffled = [members[i] for i in rng.permutation(len(members))]
    shuffled.sort(key=lambda case: -len(case.slide_ids))
    total = sum(len(case.slide_ids) for case in members)
    dealt: list[list[Case]] = [[] for _ in quotas]
    slides = [0] * len(quotas)
    for case in shuffled:
        open_parts = [p for p, quota in enumerate(quotas) if len(dealt[p]) < quota]
        wanted = {p: total * quotas[p] / len(members) for p in open_parts}
        # Ties are broken at random, or the largest patients would always be in the same part.
        ties = dict(zip(open_parts, rng.random(len(open_parts)), strict=True))
        chosen = min(open_parts, key=lambda p: (round(slides[p] / wanted[p], 9), ties[p]))
        dealt[chosen].append(case)
        slides[chosen] += len(case.slide_ids)
    return dealt
