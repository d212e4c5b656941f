"""Dividing patients into parts: stratified by class, a patient's slides kept together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import SplitError

__all__ = ["Case", "cases_of", "divide"]


@dataclass(frozen=True, slots=True)
class Case:
    """A patient: the slides that must stay in one part.

    Args:
        case_id: Name of the patient.
        slide_ids: Slides of the patient, sorted.
        label: Class it is stratified by: the rarest of its slides' classes.
    """

    case_id: str
    slide_ids: tuple[str, ...]
    label: str


def cases_of(
    slide_ids: Sequence[str], case_ids: Sequence[str], labels: Sequence[str]
) -> list[Case]:
    """Gather slides by patient, sorted by name so that the order of rows does not matter."""
    slides: dict[str, list[str]] = {}
    classes: dict[str, set[str]] = {}
    for slide_id, case_id, label in zip(slide_ids, case_ids, labels, strict=True):
        slides.setdefault(case_id, []).append(slide_id)
        classes.setdefault(case_id, set()).add(label)
    frequency = Counter(labels)
    return [
        Case(
            case_id,
            tuple(sorted(slides[case_id])),
            min(classes[case_id], key=lambda label: (frequency[label], label)),
        )
        for case_id in sorted(slides)
    ]


def divide(
    cases: Sequence[Case],
    shares: Sequence[float],
    rng: np.random.Generator,
    *,
    optional: Sequence[int] = (),
) -> list[list[Case]]:
    """Divide patients into parts of given shares, each class by itself.

    Of each class every part gets its share of the patients, to within one patient, and where
    patients have several slides the larger ones are dealt first, so that slides follow too.

    Args:
        cases: The patients.
        shares: Share of each part; they sum to one.
        rng: Source of chance.
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
                f"Expected at least {len(needed)} patients of class '{label}', one for each part "
                f"of the split, but got {len(members)}. Use fewer folds, or leave the class out."
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
        # Some part rounded up to its one patient: the best supplied one pays for it.
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
        # Chance breaks ties, or the largest patients would always land in the same part.
        ties = dict(zip(open_parts, rng.random(len(open_parts)), strict=True))
        chosen = min(open_parts, key=lambda p: (round(slides[p] / wanted[p], 9), ties[p]))
        dealt[chosen].append(case)
        slides[chosen] += len(case.slide_ids)
    return dealt
