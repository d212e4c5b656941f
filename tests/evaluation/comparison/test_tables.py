import csv
import io
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import OrdinalTarget
from sgpmil.evaluation.comparison.compare import compare
from sgpmil.evaluation.comparison.tables import (
    DASH,
    comparison_csv,
    comparison_latex,
    comparison_markdown,
    delong_csv,
    delong_rows,
    fixed,
    p_value,
    p_value_rows,
    row_order,
    table_cell,
    write_comparison_tables,
)
from sgpmil.evaluation.summary import MetricSummary
from tests.evaluation.folds import kfold, run_of


@pytest.fixture
def plain():
    folds = kfold(60, 5)
    names = ("ours", "abmil", "clam", "agp")
    kind = OrdinalTarget  # which has a kappa
    return compare(
        {n: run_of(folds, skill=2.0 - k / 2, seed=k, kind=kind) for k, n in enumerate(names)}
    )


def with_means(plain, metric, means):
    """Replace the means of a metric, run by run."""
    column = plain.metrics.index(metric)
    summaries = []
    for run, mean in zip(plain.summaries, means, strict=True):
        row = list(run)
        row[column] = MetricSummary(metric, mean, 0.1, (mean,) * 5, 0)
        summaries.append(tuple(row))
    return replace(plain, summaries=tuple(summaries))


def places(plain, metric):
    cells = [table_cell(plain, run, metric) for run in plain.runs]
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
def test_best_and_second_as_printed(plain, metric, means, expected):
    assert places(with_means(plain, metric, means), metric) == expected


def test_of_two_runs_none_is_second():
    folds = kfold(60, 5)
    found = compare({"a": run_of(folds, skill=2.0), "b": run_of(folds, skill=0.1, seed=1)})
    assert places(found, "auc") == "B."


def test_cells_have_the_numbers_of_the_summary(plain):
    cell = table_cell(plain, "agp", "auc")
    summary = plain.summary("agp", "auc")
    assert (cell.mean, cell.sd) == (summary.mean, summary.sd)
    assert cell.is_marked == (plain.test("agp", "auc").corrected_holm < 0.05)
    assert row_order(plain) == ("abmil", "clam", "agp", "ours")


def test_p_values_with_and_without_adjustment(plain):
    header, rows = p_value_rows(plain)
    assert len(header) == len(rows[0]) == 6
    test = plain.tests[0]
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


NASTY = ("ours_v2", r"50% & more", r"a{b}$c^d~e\f|g<h>", "#1 “é”")


@pytest.fixture
def comparison():
    folds = kfold(120, 5)
    return compare({name: run_of(folds, skill=4.0 - k, seed=k) for k, name in enumerate(NASTY)})


@pytest.fixture
def one_test_set():
    test = tuple(f"slide-{i}" for i in range(30))
    folds = [Fold(str(k), (f"slide-{90 + k}",), (), test) for k in range(3)]
    return compare(
        {
            name: run_of(folds, skill=2.0 - k, seed=k, num_classes=3)
            for k, name in enumerate(("ours", "ab_mil", "clam"))
        }
    )


def latex_tables(text):
    """Take tabular environments apart: columns of the preamble, and rows of cells."""
    tables = re.findall(r"\\begin\{tabular\}\{(l?c*)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tables) == text.count(r"\begin{tabular}")
    parsed = []
    for columns, body in tables:
        lines = body.strip().splitlines()
        assert [lines[0], lines[2], lines[-1]] == [r"\toprule", r"\midrule", r"\bottomrule"]
        rows = []
        for line in (lines[1], *lines[3:-1]):
            assert line.endswith(r" \\")
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)&", line[:-3])])
        parsed.append((columns, rows))
    return parsed


def assert_valid_latex(text):
    """Check what a compiler would stumble over: braces, maths, environments, bare specials."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    source = "\n".join(lines)
    depth = 0
    for before, character in zip(" " + source, source, strict=False):
        if character in "{}" and before != "\\":
            depth += 1 if character == "{" else -1
        assert depth >= 0
    assert depth == 0
    bare = re.sub(r"\\.", "", source)
    assert bare.count("$") % 2 == 0
    outside_maths = re.sub(r"\$[^$]*\$", "", bare)
    assert not re.search(r"[%#~]", outside_maths)
    assert "_" not in re.sub(r"label\{[^}]*\}", "", outside_maths.replace("abel{tab:", "label{"))
    assert "^" not in outside_maths
    begun = re.findall(r"\\begin\{(\w+)\}", source)
    ended = re.findall(r"\\end\{(\w+)\}", source)
    assert sorted(begun) == sorted(ended)
    for columns, rows in latex_tables(text):
        assert {len(row) for row in rows} == {len(columns)}
    # Nothing beside the kernel and booktabs.
    commands = set(re.findall(r"\\([a-zA-Z]+)", source))
    assert commands <= {
        *("begin", "end", "centering", "caption", "label", "toprule", "midrule", "bottomrule"),
        *("textbf", "mathbf", "underline", "mathrm", "star", "circ", "uparrow", "downarrow"),
        *("textbackslash", "textasciitilde", "textasciicircum"),
        *("textless", "textgreater", "textbar"),
    }


def test_latex_of_names_that_are_commands(comparison):
    text = comparison_latex(comparison)
    assert_valid_latex(text)
    results, p_values = latex_tables(text)
    names = [row[0] for row in results[1]]
    assert names == [
        "",
        r"50\% \& more",
        r"a\{b\}\$c\textasciicircum{}d\textasciitilde{}e\textbackslash{}f"
        r"\textbar{}g\textless{}h\textgreater{}",
        r"\#1 “é”",
        r"\textbf{ours\_v2}",
    ]
    assert [row[0] for row in p_values[1]] == names[:-1]


def test_latex_cells_are_those_of_the_paper(comparison):
    (_, rows), (_, p_rows) = latex_tables(comparison_latex(comparison))
    order = (*NASTY[1:], NASTY[0])
    for run, row in zip(order, rows[1:], strict=True):
        for metric, cell in zip(comparison.metrics, row[1:], strict=True):
            expected = table_cell(comparison, run, metric)
            mean, sd = (
                re.sub(r"^(-?)0\.", r"\1.", f"{v:.3f}") for v in (expected.mean, expected.sd)
            )
            star = r"^{\star}" if expected.is_marked else ""
            assert re.sub(r"\\mathbf\{(.*?)\}|\\underline\{(.*?)\}", r"\1\2", cell) == (
                f"${mean}{star}_{{{sd}}}$"
            )
            assert (r"\mathbf" in cell) == expected.is_best
            assert (r"\underline" in cell) == expected.is_second
    for run, row in zip(NASTY[1:], p_rows[1:], strict=True):
        for metric, cell in zip(comparison.metrics, row[1:], strict=True):
            number = float(re.sub(r"\\mathbf|\\mathrm|[${}]", "", cell))
            assert number == pytest.approx(comparison.test(run, metric).corrected_holm, rel=0.01)
            assert (r"\mathbf" in cell) == comparison.is_marked(run, metric)
    text = comparison_latex(comparison)
    assert any(comparison.is_marked(run, "nll") for run in NASTY[1:])
    assert "Nadeau and Bengio" in text
    assert "adjusted for 3 comparisons (Holm)" in text


def test_latex_of_delong_and_of_one_fold(one_test_set):
    assert_valid_latex(comparison_latex(one_test_set))
    tables = latex_tables(comparison_latex(one_test_set))
    assert len(tables) == 3
    assert [row[:2] for row in tables[2][1][1:]] == [
        [run, f"class {c}"] for run in (r"ab\_mil", "clam") for c in range(3)
    ]
    fold = kfold(60, 2)[:1]
    one = compare({name: run_of(fold, seed=k) for k, name in enumerate("ab")})
    text = comparison_latex(one)
    assert_valid_latex(text)
    assert r"\star" not in text
    assert "One fold" in text
    assert len(latex_tables(text)) == 2


def test_undefined_is_a_dash():
    folds = [Fold(str(k), ("slide-99",), (), (f"slide-{2 * k}",)) for k in range(3)]
    found = compare(
        {"a": run_of(folds, skill=50.0), "b": run_of(folds, skill=-50.0)}, metrics=["auc", "nll"]
    )
    text = comparison_latex(found)
    assert_valid_latex(text)
    (_, rows), (_, p_rows) = latex_tables(text)
    assert [row[1] for row in rows[1:]] == ["--", "--"]
    assert p_rows[1][1] == "--"
    assert "| b | – |" in comparison_markdown(found)
    frame = pd.read_csv(io.StringIO(comparison_csv(found)))
    assert frame.loc[frame.metric == "auc", ["mean", "sd", "p_paired"]].isna().all(axis=None)
    assert "nan" not in text + comparison_markdown(found) + comparison_csv(found)


def markdown_tables(text):
    tables = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.strip().splitlines()]
        tables.append([[cell.strip() for cell in line] for line in lines])
    return tables


def test_markdown(comparison):
    text = comparison_markdown(comparison)
    results, tests = markdown_tables(text)
    for table in (results, tests):
        assert {len(row) for row in table} == {len(table[0])}
        assert set(table[1]) == {"---"}
    assert results[0][1:3] == ["bal. ACC ↑", "ACC ↑"]
    assert results[0][4] == "ACE ↓"
    assert [row[0] for row in results[2:]] == [
        "50% & more",
        r"a{b}$c^d\~e\\f\|g\<h\>",
        r"\#1 “é”",
        r"**ours\_v2**",
    ]
    cell = table_cell(comparison, NASTY[0], "nll")
    assert results[-1][5] == f"**{cell.mean:.3f}** ± {cell.sd:.3f}"
    marked = sum(row.count("★") for row in ["".join(r) for r in results])
    assert marked == sum(comparison.is_marked(r, m) for r in NASTY for m in comparison.metrics) > 0
    assert "Mean ± standard deviation over 5 folds" in text
    assert "corrected for overlapping training sets" in text
    assert len(tests) == 2 + len(comparison.tests)
    assert "## Notes" in text
    share = 100 * comparison.design.shared_training
    assert f"share {share:.0f} % of their slides" in text


def test_markdown_of_delong(one_test_set):
    text = comparison_markdown(one_test_set)
    assert "DeLong" in text
    assert len(markdown_tables(text)) == 3
    alone = replace(one_test_set, notes=(), auc_tests=(), tests=())
    assert "## " not in comparison_markdown(alone)


def test_csv_has_every_number(comparison):
    frame = pd.read_csv(io.StringIO(comparison_csv(comparison)), float_precision="round_trip")
    assert frame["run"].unique().tolist() == list(NASTY)
    assert len(frame) == len(NASTY) * len(comparison.metrics)
    for row in frame.itertuples():
        summary = comparison.summary(row.run, row.metric)
        assert (row.mean, row.sd, row.num_folds) == (summary.mean, summary.sd, 5)
        assert tuple(getattr(row, f"fold_{k}") for k in range(5)) == summary.values
        test = comparison.test(row.run, row.metric)
        if test is None:
            assert math.isnan(row.p_paired)
            continue
        assert row.reference_minus_run == test.paired.difference
        assert (row.p_paired, row.p_paired_holm) == (test.paired.p_value, test.paired_holm)
        assert row.p_corrected == test.corrected.p_value
        assert row.p_corrected_holm == test.corrected_holm
        assert (row.p_wilcoxon, row.p_wilcoxon_holm) == (test.wilcoxon.p_value, test.wilcoxon_holm)
        assert row.marked == comparison.is_marked(row.run, row.metric)
    lower = set(frame.loc[frame.better == "lower", "metric"])
    assert lower == {"ace", "nll", "brier"}


def test_delong_csv(one_test_set):
    rows = list(csv.DictReader(io.StringIO(delong_csv(one_test_set))))
    assert len(rows) == 6
    for row, found in zip(rows, one_test_set.auc_tests, strict=True):
        assert (row["run"], row["class"]) == (found.run, found.class_name)
        numbers = [float(row[n]) for n in ("auc_reference", "auc_run", "z", "p", "p_holm")]
        test = found.test
        expected = [test.auc_a, test.auc_b, test.statistic, test.p_value, found.p_holm]
        np.testing.assert_array_equal(numbers, expected)
        assert int(row["num_positive"]) + int(row["num_negative"]) == 30


def test_files(tmp_path, comparison, one_test_set):
    written = write_comparison_tables(tmp_path / "a" / "b", comparison)
    assert [path.name for path in written] == ["comparison.md", "comparison.csv", "comparison.tex"]
    assert written[0].read_text(encoding="utf-8") == comparison_markdown(comparison)
    assert written[1].read_text(encoding="utf-8") == comparison_csv(comparison)
    assert written[2].read_text(encoding="utf-8") == comparison_latex(comparison)
    written = write_comparison_tables(tmp_path, one_test_set)
    assert written[-1].read_text() == delong_csv(one_test_set)
