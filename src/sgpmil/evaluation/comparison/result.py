"""Result of a comparison of runs, and notes on its limits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sgpmil.bags.tables import listed
from sgpmil.evaluation.comparison.comparability import FoldDesign, FoldPredictions
from sgpmil.evaluation.comparison.delong import AucTest
from sgpmil.evaluation.comparison.significance import PairedTest
from sgpmil.evaluation.metrics import get_metric
from sgpmil.evaluation.provenance import differing_slides
from sgpmil.evaluation.summary import MetricSummary
from sgpmil.notebook import counted


@dataclass(frozen=True, slots=True)
class RunTest:
    """Tests, across folds, of whether the reference is better than a run in a metric.

    P-values are one-sided; those of Holm are adjusted for the number of runs that the reference
    is compared with in this metric.

    Args:
        run: Name of the run that the reference is compared with.
        metric: Name of the metric.
        paired: Student's paired t-test, as the paper has it.
        corrected: The same corrected for training sets that overlap; None where the sizes of
            the training sets are unknown.
        wilcoxon: Wilcoxon's signed-rank test.
        paired_holm: Adjusted p-value of `paired`.
        corrected_holm: Adjusted p-value of `corrected`; NaN without one.
        wilcoxon_holm: Adjusted p-value of `wilcoxon`.
        reverse_holm: Adjusted p-value of the marking test in the other direction, of whether the
            run is better than the reference; NaN where neither can be better.
    """

    run: str
    metric: str
    paired: PairedTest
    corrected: PairedTest | None
    wilcoxon: PairedTest
    paired_holm: float
    corrected_holm: float
    wilcoxon_holm: float
    reverse_holm: float

    @property
    def marking(self) -> PairedTest:
        """The test that marks a table: the corrected one where there is one."""
        return self.paired if self.corrected is None else self.corrected

    @property
    def marking_holm(self) -> float:
        """Adjusted p-value of the test that marks a table."""
        return self.paired_holm if self.corrected is None else self.corrected_holm


@dataclass(frozen=True, slots=True)
class ClassAucTest:
    """DeLong's one-sided test of whether the reference ranks the slides of a class better.

    Args:
        run: Name of the run that the reference is compared with.
        class_name: Class that is ranked against the rest.
        test: The test.
        p_holm: Its p-value, adjusted for the number of runs and classes.
        reverse_holm: The same of whether the run ranks them better than the reference.
    """

    run: str
    class_name: str
    test: AucTest
    p_holm: float
    reverse_holm: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs compared with a reference.

    Args:
        runs: Name of each run, the reference first.
        folds: Name of each fold that all runs have.
        metrics: Name of each metric.
        summaries: For each run, a summary of each metric.
        tests: Tests across folds, a metric and run each; none with a single fold.
        auc_tests: DeLong's tests, where all folds have one test set.
        design: Overlap of the folds' slides.
        alpha: Level below which an adjusted p-value is marked.
        notes: Limits of the result, a sentence each.
    """

    runs: tuple[str, ...]
    folds: tuple[str, ...]
    metrics: tuple[str, ...]
    summaries: tuple[tuple[MetricSummary, ...], ...]
    tests: tuple[RunTest, ...]
    auc_tests: tuple[ClassAucTest, ...]
    design: FoldDesign
    alpha: float
    notes: tuple[str, ...]

    @property
    def reference(self) -> str:
        """Name of the run that the others are compared with."""
        return self.runs[0]

    @property
    def marking(self) -> str:
        """The test whose p-values mark a table, in words."""
        name = "paired t-test"
        if self.design.num_train:
            name = "t-test corrected for overlapping training sets (Nadeau and Bengio)"
        num_others = len(self.runs) - 1
        family = f"adjusted for {num_others} comparisons (Holm)" if num_others > 1 else "unadjusted"
        return f"one-sided {name} across {len(self.folds)} folds, {family}"

    def summary(self, run: str, metric: str) -> MetricSummary:
        """Return the summary of a run's metric."""
        return self.summaries[self.runs.index(run)][self.metrics.index(metric)]

    def test(self, run: str, metric: str) -> RunTest | None:
        """Return the tests of the reference against a run; None for the reference itself."""
        found = (test for test in self.tests if (test.run, test.metric) == (run, metric))
        return next(found, None)

    def is_marked(self, run: str, metric: str) -> bool:
        """Return whether the reference is significantly better than a run in a metric."""
        test = self.test(run, metric)
        return test is not None and test.marking_holm < self.alpha

    def is_behind(self, run: str, metric: str) -> bool:
        """Return whether a run is significantly better than the reference in a metric."""
        test = self.test(run, metric)
        return test is not None and test.reverse_holm < self.alpha

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Who is significantly better than whom, in either direction, a sentence each."""
        said = []
        for run in self.runs[1:]:
            for first, second, reverse in (
                (self.reference, run, False),
                (run, self.reference, True),
            ):
                p_values = {
                    test.metric: test.reverse_holm if reverse else test.marking_holm
                    for test in self.tests
                    if test.run == run
                }
                better = [
                    f"{get_metric(name).name} ({_p_value(p_values[name])})"
                    for name in self.metrics
                    if p_values.get(name, 1.0) < self.alpha
                ]
                if better:
                    share = f"{len(better)} of {len(p_values)} metrics"
                    said.append(
                        f"{first} is better than {second} in {'; '.join(better)}: {share}, not "
                        "corrected for their number."
                        if len(p_values) > 1
                        else f"{first} is better than {second} in {better[0]}."
                    )
        if self.tests and not said:
            others = self.runs[1] if len(self.runs) == 2 else "any other run"
            said.append(
                f"{self.reference} is neither significantly better nor significantly worse than "
                f"{others} in any metric."
            )
        for found in self.auc_tests:
            ranks = f"the AUC of '{found.class_name}' by DeLong's test."
            if found.p_holm < self.alpha:
                said.append(f"{self.reference} is better than {found.run} in {ranks}")
            elif found.reverse_holm < self.alpha:
                said.append(f"{found.run} is better than {self.reference} in {ranks}")
        return tuple(said)


def comparison_notes(
    given: Mapping[str, Sequence[FoldPredictions]],
    compared: Mapping[str, Sequence[FoldPredictions]],
    design: FoldDesign,
    tests: Sequence[RunTest],
) -> tuple[str, ...]:
    """List the limits of a comparison.

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
        _other_data(compared),
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


def _p_value(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def _other_data(runs: Mapping[str, Sequence[FoldPredictions]]) -> str:
    """Say which runs have other features under the names of the same slides."""
    (reference, reference_folds), *others = runs.items()
    said = []
    for run, folds in others:
        pairs = [
            (ours.table.provenance, theirs.table.provenance)
            for ours, theirs in zip(reference_folds, folds, strict=True)
        ]
        slides = {slide for pair in pairs for slide in differing_slides(*pair)}
        if slides:
            encoders = [
                " and ".join(sorted({e for one in side if one is not None for e in one.encoders}))
                for side in zip(*pairs, strict=True)
            ]
            why = (
                f"{encoders[0]} and {encoders[1]}"
                if all(encoders) and encoders[0] != encoders[1]
                else "other data, or the same in another format"
            )
            said.append(
                f"{counted(len(slides), 'slide')} of '{run}' ({why}; {listed(sorted(slides))})"
            )
    if not said:
        return ""
    return (
        f"Test slides of the same names have other files of features than in '{reference}': "
        f"{'; '.join(said)}. The comparison is of models and data together."
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
