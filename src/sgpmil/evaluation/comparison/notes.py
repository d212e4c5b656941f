"""What to know when reading a comparison of runs."""

import math
from collections.abc import Mapping, Sequence

from sgpmil.bags.tables import listed
from sgpmil.evaluation.comparison.comparability import FoldDesign, FoldPredictions
from sgpmil.evaluation.comparison.result import RunTest
from sgpmil.evaluation.metrics import get_metric

__all__ = ["comparison_notes"]


def comparison_notes(
    given: Mapping[str, Sequence[FoldPredictions]],
    compared: Mapping[str, Sequence[FoldPredictions]],
    design: FoldDesign,
    tests: Sequence[RunTest],
) -> tuple[str, ...]:
    """Tell what limits a comparison.

    Args:
        given: Folds of each run.
        compared: Those of them that all runs have.
        design: How the folds share slides.
        tests: Tests across folds.

    Returns:
        A sentence each.
    """
    folds = next(iter(compared.values()))
    notes = [
        _left_out(given, [fold.name for fold in folds]),
        _test_sets(design),
        _training_sets(design),
        _unchecked(compared),
        _other_training(compared),
        _patients(folds[0]) if design.test_sets in ("one", "same") else "",
        _few_folds(len(folds)),
        *_undefined(tests, len(folds)),
    ]
    return tuple(note for note in notes if note)


def _left_out(given: Mapping[str, Sequence[FoldPredictions]], kept: Sequence[str]) -> str:
    names = dict.fromkeys(fold.name for folds in given.values() for fold in folds)
    missing = [name for name in names if name not in kept]
    if not missing:
        return ""
    return (
        f"Only the {_folds(len(kept))} that every run has finished "
        f"{'are' if len(kept) > 1 else 'is'} compared; left out: {listed(missing, limit=10)}."
    )


def _test_sets(design: FoldDesign) -> str:
    num = len(design.num_test)
    match design.test_sets:
        case "one":
            return (
                "There is one fold, and a test across folds needs at least two: only DeLong's "
                "test of the AUC is given."
            )
        case "same":
            return (
                f"All {num} folds are tested on the same {design.num_test[0]} slides: tests across "
                "folds see how training varies, not how other slides would turn out. DeLong's "
                "test compares the AUC of the folds' mean probabilities on these slides."
            )
        case "overlapping":
            return (
                "Test sets of different folds share slides, so folds are not independent: even "
                "the corrected test is a rule of thumb."
            )
        case "disjoint":
            return ""


def _training_sets(design: FoldDesign) -> str:
    share = design.shared_training
    if design.test_sets == "one" or share == 0:
        return ""
    if math.isnan(share):
        return (
            "The training slides are not known, so the t-test is the plain one; it is too liberal "
            "where the training sets of folds overlap."
        )
    if share == 1:
        return (
            "All folds are trained on the same slides: tests across folds see nothing but the "
            "seeds, and the correction for overlap is a rule of thumb."
        )
    return (
        f"Training sets of two folds share {100 * share:.0f} % of their slides on average: the "
        "plain paired t-test is too liberal, and the corrected one is to be read."
    )


def _unchecked(runs: Mapping[str, Sequence[FoldPredictions]]) -> str:
    names = [run for run, folds in runs.items() if any(fold.split is None for fold in folds)]
    if not names:
        return ""
    return (
        f"The splits of {listed(names, limit=10)} are not known: whether models were judged on "
        "slides they had learned from could not be checked."
    )


def _other_training(runs: Mapping[str, Sequence[FoldPredictions]]) -> str:
    (reference, reference_folds), *others = runs.items()
    differing = [
        run
        for run, folds in others
        for ours, theirs in zip(reference_folds, folds, strict=True)
        if ours.split is not None
        and theirs.split is not None
        and set(ours.split.train) != set(theirs.split.train)
    ]
    if not differing:
        return ""
    return (
        f"{listed(list(dict.fromkeys(differing)), limit=10)} had other training slides than "
        f"'{reference}': a difference may be due to these."
    )


def _patients(fold: FoldPredictions) -> str:
    cases = [prediction.case_id for prediction in fold.table.labelled().predictions]
    if len(set(cases)) == len(cases):
        return ""
    return (
        f"The {len(cases)} test slides come from {len(set(cases))} patients: DeLong's test takes "
        "them for independent, and its p-values may be too small."
    )


def _few_folds(num: int) -> str:
    if not 2 <= num <= 4:
        return ""
    return f"With {num} folds, Wilcoxon's p-value cannot be below {0.5**num:.3g}."


def _undefined(tests: Sequence[RunTest], num_folds: int) -> list[str]:
    notes = []
    for test in tests:
        found, what = test.marking, f"{get_metric(test.metric).name} against '{test.run}'"
        if found.reason:
            notes.append(f"{what}: no t-test, since {found.reason}.")
        elif found.num_folds < num_folds:
            notes.append(
                f"{what}: tested in the {found.num_folds} of {num_folds} folds in which both runs "
                "have it."
            )
    return notes


def _folds(num: int) -> str:
    return f"{num} folds" if num > 1 else "fold"
