import math
from dataclasses import replace

import pytest

from sgpmil.evaluation.comparison.cells import (
    DASH,
    delong_rows,
    fixed,
    p_value,
    p_value_rows,
    row_order,
    table_cell,
)
from sgpmil.evaluation.comparison.compare import compare
from sgpmil.evaluation.summary import MetricSummary
from tests.evaluation.folds import kfold, run_of


@pytest.fixture
def comparison():
    folds = kfold(60, 5)
    names = ("ours", "abmil", "clam", "agp")
    return compare({name: run_of(folds, skill=2.0 - k / 2, seed=k) for k, name in enumerate(names)})


def with_means(comparison, metric, means):
    """Replace the means of a metric, run by run."""
    column = comparison.metrics.index(metric)
    summaries = []
    for run, mean in zip(comparison.summaries, means, strict=True):
        row = list(run)
        row[column] = MetricSummary(metric, mean, 0.1, (mean,) * 5, 0)
        summaries.append(tuple(row))
    return replace(comparison, summaries=tuple(summaries))


def places(comparison, metric):
    cells = [table_cell(comparison, run, metric) for run in comparison.runs]
    return "".join("B" if c.is_best else "s" if c.is_second else "." for c in cells)


@pytest.mark.parametrize(
    ("metric", "means", "expected"),
    [
        ("auc", (0.9, 0.8, 0.7, 0.6), "Bs.."),
        ("ace", (0.9, 0.8, 0.7, 0.6), "..sB"),
        ("auc", (0.95301, 0.95298, 0.9, 0.953), "BBsB"),  # .953 three times
        ("auc", (0.8, 0.9, 0.8004, 0.7), "sBs."),
        ("auc", (0.9, math.nan, 0.8, 0.7), "B.s."),
        ("auc", (math.nan,) * 4, "...."),
        ("kappa", (-0.1, -0.2, -0.3, -0.0001), "s..B"),
        ("auc", (0.5,) * 4, "BBBB"),
    ],
)
def test_best_and_second_as_printed(comparison, metric, means, expected):
    assert places(with_means(comparison, metric, means), metric) == expected


def test_of_two_runs_none_is_second():
    folds = kfold(60, 5)
    found = compare({"a": run_of(folds, skill=2.0), "b": run_of(folds, skill=0.1, seed=1)})
    assert places(found, "auc") == "B."


def test_cells_have_the_numbers_of_the_summary(comparison):
    cell = table_cell(comparison, "agp", "auc")
    summary = comparison.summary("agp", "auc")
    assert (cell.mean, cell.sd) == (summary.mean, summary.sd)
    assert cell.is_marked == (comparison.test("agp", "auc").corrected_holm < 0.05)
    assert row_order(comparison) == ("abmil", "clam", "agp", "ours")


def test_p_values_with_and_without_adjustment(comparison):
    header, rows = p_value_rows(comparison)
    assert len(header) == len(rows[0]) == 6
    test = comparison.tests[0]
    assert rows[0] == (
        "balanced accuracy",
        "abmil",
        f"{test.paired.difference:+.3f}",
        f"{test.paired.p_value:.2g} ({test.paired_holm:.2g})",
        f"{test.corrected.p_value:.2g} ({test.corrected_holm:.2g})",
        f"{test.wilcoxon.p_value:.2g} ({test.wilcoxon_holm:.2g})",
    )
    folds = kfold(60, 5)
    two = compare({k: run_of(folds, seed=i, with_splits=False) for i, k in enumerate("ab")})
    _, rows = p_value_rows(two)
    assert "(" not in "".join(rows[0])
    assert {row[4] for row in rows} == {DASH}


def test_delong_rows():
    fold = kfold(60, 2)[:1]
    found = compare({"a": run_of(fold, skill=2.0), "b": run_of(fold, skill=0.1, seed=1)})
    header, rows = delong_rows(found)
    test = found.auc_tests[0].test
    assert len(header) == 6
    assert rows == [
        (
            "b",
            "class 1",
            f"{test.auc_a:.3f}",
            f"{test.auc_b:.3f}",
            f"{test.p_value:.2g}",
            f"{test.p_value:.2g}",
        )
    ]


def test_numbers():
    assert fixed(math.nan) == p_value(math.nan) == DASH
    assert fixed(-0.25) == "-0.250"
    assert p_value(0.049) == "0.049"
    assert p_value(3.4e-12) == "3.4e-12"
