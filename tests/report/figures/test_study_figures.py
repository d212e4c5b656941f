import math

import numpy as np
import pytest

from sgpmil.report.figures.study_figures import (
    BoundRow,
    Curve,
    Difference,
    Panel,
    Share,
    bounds_figure,
    curves_figure,
    differences_figure,
    shares_figure,
)


@pytest.mark.parametrize("is_log", [False, True])
def test_curves_have_their_means_and_intervals(is_log):
    curves = [
        Curve("a", [1, 10], [0.5, 0.7], [0.4, 0.6], [0.6, 0.8]),
        Curve("b$x$", [1], [0.2], [math.nan], [math.nan]),
    ]
    figure = curves_figure([Panel("AUC", "bags", curves, is_log, 0.5)], "title")
    axes = figure.axes[0]
    drawn = {c.get_label(): c for c in axes.containers}
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["a"].get_ydata().tolist() == [0.5, 0.7]
    x = lines["a"].get_xdata()
    assert 0.5 < x[0] < 2
    assert x[0] != lines["b$x$"].get_xdata()[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "10"]
    heights = [path[:, 1] for path in axes.collections[0].get_segments()]
    assert np.sort(np.concatenate(heights)).tolist() == pytest.approx([0.4, 0.6, 0.6, 0.8])
    assert drawn
    figure.canvas.draw()


def test_differences_are_rows_with_intervals():
    rows = [Difference("16", "M", -0.1, -0.2, 0.0), Difference("linear", "kernel", 0.1, 0.0, 0.2)]
    figure = differences_figure([("AUC", rows), ("NLL", rows[:1])], "title", "difference")
    first = figure.axes[0]
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["M: 16", "kernel: linear"]
    assert [-0.2, 0.0] in [np.asarray(line.get_xdata()).tolist() for line in first.lines]
    figure.canvas.draw()


def test_bounds_stand_beside_what_was_found():
    rows = [BoundRow("classifier", "agp", [2.0, 8.0], [1.0]), BoundRow("attention", "", [0.5])]
    figure = bounds_figure(rows, "bounds")
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["agp, classifier", "attention"]
    points = [np.asarray(line.get_xdata()).tolist() for line in axes.lines]
    assert [5.0] in points
    assert [1.0] in points
    assert axes.get_xscale() == "log"


def test_a_cell_of_shares_says_its_counts():
    shares = [Share("all", "agp", 3, 4), Share("all", "default", 0, 4), Share("x", "agp", 1, 2)]
    figure = shares_figure(shares, "failed")
    axes = figure.axes[0]
    assert {text.get_text() for text in axes.texts} == {"3 / 4", "0 / 4", "1 / 2"}
    grid = axes.images[0].get_array()
    assert grid[0].tolist() == [0.75, 0.0]
