"""Comparison of runs with a reference, on the same slides, by fold and metric."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.comparison.comparability import (
    FoldDesign,
    FoldPredictions,
    check_same_test_sets,
    fold_design,
)
from sgpmil.evaluation.comparison.delong import AucTest, delong_test
from sgpmil.evaluation.comparison.result import ClassAucTest, Comparison, RunTest, comparison_notes
from sgpmil.evaluation.comparison.significance import (
    PairedTest,
    better_alternative,
    corrected_t_test,
    holm,
    paired_t_test,
    wilcoxon_test,
)
from sgpmil.evaluation.metrics import INSTANCE_METRICS, get_metric
from sgpmil.evaluation.summary import MetricSummary, summarise
from sgpmil.shapes import Float

DEFAULT_METRICS = (
    *("balanced_accuracy", "accuracy", "auc", "kappa", "mean_absolute_error"),
    *("ace", "nll", "brier"),
)
"""Metrics over slides that are compared by default."""

_INSTANCE_METRICS = tuple(metric.key for metric in INSTANCE_METRICS)


def compare(
    runs: Mapping[str, Sequence[FoldPredictions]],
    *,
    metrics: Sequence[str] | None = None,
    alpha: float = 0.05,
) -> Comparison:
    """Compare runs with the first of them, on the folds that all of them have.

    Every test is one-sided: whether the reference is the better one. The test that marks a table,
    and DeLong's, are done in the other direction, too, each direction at the level `alpha`. Test
    sets must be the same in every run; each fold is judged on its own, and slides of several
    folds are never pooled, since they were scored by different models. Where all folds have the
    same test set, tests across folds see only how training varies: DeLong's test of the folds'
    mean probabilities then compares the runs as they are on those slides (each class against the
    rest where there are more than two).

    Args:
        runs: Folds of each run by the run's name, the reference first.
        metrics: Names of metrics to compare; by default `DEFAULT_METRICS`, and those of instances
            that all runs have.
        alpha: Level below which an adjusted p-value is marked.

    Raises:
        PredictionError: There are fewer than two runs, they have no fold in common, their test
            sets differ, or a metric does not exist.
    """
    if len(runs) < 2:
        raise PredictionError(
            f"Expected at least two runs to compare, but got {len(runs)}. Name another."
        )
    if not 0 < alpha < 1:
        raise PredictionError(f"Expected alpha between 0 and 1, but got {alpha}. Use 0.05.")
    common = _common_folds(runs)
    check_same_test_sets(common)
    summaries = {
        run: {summary.name: summary for summary in summarise([fold.metrics for fold in folds])}
        for run, folds in common.items()
    }
    names = _metrics(summaries, metrics)
    # Folds of one name have one test set; a run without splits borrows those of another.
    known = [folds for folds in common.values() if fold_design(folds).num_train]
    design = fold_design(known[0] if known else next(iter(common.values())))
    tests = tuple(test for name in names for test in _tests(name, summaries, design))
    auc_tests = _auc_tests(common) if design.test_sets in ("one", "same") else ()
    return Comparison(
        runs=tuple(common),
        folds=tuple(fold.name for fold in next(iter(common.values()))),
        metrics=names,
        summaries=tuple(tuple(found[name] for name in names) for found in summaries.values()),
        tests=tests,
        auc_tests=auc_tests,
        design=design,
        alpha=alpha,
        notes=comparison_notes(runs, common, design, tests),
    )


def _common_folds(
    runs: Mapping[str, Sequence[FoldPredictions]],
) -> dict[str, tuple[FoldPredictions, ...]]:
    by_name: dict[str, dict[str, FoldPredictions]] = {}
    for run, folds in runs.items():
        by_name[run] = {fold.name: fold for fold in folds}
        if len(by_name[run]) < len(folds):
            raise PredictionError(
                f"Expected each fold of '{run}' once, but a name occurs twice. "
                "Name the folds apart."
            )
    first = next(iter(by_name.values()))
    names = [name for name in first if all(name in folds for folds in by_name.values())]
    if not names:
        held = "; ".join(f"'{r}': {', '.join(f) or 'none'}" for r, f in by_name.items())
        raise PredictionError(
            f"Expected a fold that all runs have finished, but got {held}. Finish the runs."
        )
    return {run: tuple(folds[name] for name in names) for run, folds in by_name.items()}


def _metrics(
    summaries: Mapping[str, Mapping[str, MetricSummary]], asked: Sequence[str] | None
) -> tuple[str, ...]:
    def lacking(name: str) -> list[str]:
        return [
            run
            for run, found in summaries.items()
            if name not in found or math.isnan(found[name].mean)
        ]

    if not asked:
        # Classes without an order have no kappa.
        usual = (
            name for name in DEFAULT_METRICS if get_metric(name).is_for_all or not lacking(name)
        )
        return (*usual, *(name for name in _INSTANCE_METRICS if not lacking(name)))
    for name in asked:
        get_metric(name)
        if name in _INSTANCE_METRICS and lacking(name):
            raise PredictionError(
                f"Expected the metric '{name}' in every run, but '{lacking(name)[0]}' has it in "
                "no fold. Choose metrics that all runs have."
            )
    return tuple(dict.fromkeys(asked))


def _tests(
    metric: str, summaries: Mapping[str, Mapping[str, MetricSummary]], design: FoldDesign
) -> list[RunTest]:
    if design.test_sets == "one":
        return []
    (_, reference), *others = summaries.items()
    alternative = better_alternative(metric)
    pairs = [(reference[metric].values, found[metric].values) for _, found in others]
    paired = [paired_t_test(a, b, alternative) for a, b in pairs]
    wilcoxon = [wilcoxon_test(a, b, alternative) for a, b in pairs]
    sizes = {"num_train": design.num_train, "num_test": design.num_test}
    corrected = [
        corrected_t_test(a, b, alternative, **sizes) if design.num_train else None for a, b in pairs
    ]
    paired_holm = holm([test.p_value for test in paired])
    wilcoxon_holm = holm([test.p_value for test in wilcoxon])
    reverse_holm = holm([_reverse(test or paired[i]) for i, test in enumerate(corrected)])
    corrected_holm = holm([math.nan if test is None else test.p_value for test in corrected])
    return [
        RunTest(
            run=run,
            metric=metric,
            paired=paired[i],
            corrected=corrected[i],
            wilcoxon=wilcoxon[i],
            paired_holm=paired_holm[i],
            corrected_holm=corrected_holm[i],
            wilcoxon_holm=wilcoxon_holm[i],
            reverse_holm=reverse_holm[i] if alternative != "two-sided" else math.nan,
        )
        for i, (run, _) in enumerate(others)
    ]


def _reverse(test: PairedTest | AucTest) -> float:
    """Return the p-value of a one-sided test in the other direction."""
    # Equal systems have p = 1 in either direction; the statistics are continuous otherwise.
    return 1.0 if test.statistic == 0 else 1.0 - test.p_value


def _auc_tests(runs: Mapping[str, Sequence[FoldPredictions]]) -> tuple[ClassAucTest, ...]:
    (_, reference_folds), *others = runs.items()
    first = reference_folds[0].table.labelled()
    labels = first.labels[np.argsort(first.slide_ids)]
    reference = _mean_probs(reference_folds)
    found = [
        (run, c, delong_test(reference[:, c], probs[:, c], labels == c))
        for run, probs in ((run, _mean_probs(folds)) for run, folds in others)
        for c in first.target.ranked
    ]
    adjusted = holm([test.p_value for _, _, test in found])
    reverse = holm([_reverse(test) for _, _, test in found])
    return tuple(
        ClassAucTest(run, first.target.names[c], test, p, q)
        for (run, c, test), p, q in zip(found, adjusted, reverse, strict=True)
    )


def _mean_probs(folds: Sequence[FoldPredictions]) -> Float[np.ndarray, "n C"]:
    """Average the folds' probabilities of each labelled slide, slides in the order of names."""
    tables = [fold.table.labelled() for fold in folds]
    aligned = [table.probs[np.argsort(table.slide_ids)] for table in tables]
    return np.asarray(np.mean(aligned, axis=0))
