"""What a comparison of runs finds."""

from dataclasses import dataclass

from sgpmil.evaluation.comparison.comparability import FoldDesign
from sgpmil.evaluation.comparison.delong import AucTest
from sgpmil.evaluation.comparison.significance import PairedTest
from sgpmil.evaluation.summary import MetricSummary

__all__ = ["ClassAucTest", "Comparison", "RunTest"]


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
    """

    run: str
    metric: str
    paired: PairedTest
    corrected: PairedTest | None
    wilcoxon: PairedTest
    paired_holm: float
    corrected_holm: float
    wilcoxon_holm: float

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
        class_name: Class that is told from the rest.
        test: The test.
        p_holm: Its p-value, adjusted for the number of runs and classes.
    """

    run: str
    class_name: str
    test: AucTest
    p_holm: float


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
        design: How the folds share slides.
        alpha: Level below which an adjusted p-value is marked.
        notes: What to know when reading the result, a sentence each.
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
        """Say whether the reference is significantly better than a run in a metric."""
        test = self.test(run, metric)
        return test is not None and test.marking_holm < self.alpha
