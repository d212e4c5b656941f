import math

import numpy as np
import pytest

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.report.figures.model_study_figures import (
    BoxPanel,
    box_figure,
    reliability_grid,
    uncertainty_grid,
)


def panel(p_values, values=None):
    values = values or {"a": [0.5, 0.6, math.nan], "b": [0.55, 0.65, 0.6], "ours": [0.8, 0.9, 0.85]}
    return BoxPanel("AUC ↑", values, p_values, {"a": 0.97})


def drawn(figure):
    (axes,) = figure.axes
    bars = [line for line in axes.lines if len(line.get_xdata()) == 4]
    stars = [text for text in axes.texts if text.get_text() == "★"]
    return axes, [tuple(bar.get_xdata()[[0, -1]]) for bar in bars], len(stars)


def test_a_bar_joins_the_reference_with_each_model_that_it_is_better_than():
    axes, bars, stars = drawn(box_figure([panel({"a": 0.01, "b": 0.2})], "Title"))
    assert bars == [(0, 2)]
    assert stars == 1
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "ours"]
    _, bars, stars = drawn(box_figure([panel({"a": 0.01, "b": 0.04})], "Title"))
    assert bars == [(1, 2), (0, 2)]
    assert stars == 2
    _, bars, stars = drawn(box_figure([panel({"a": math.nan})], "Title"))
    assert (bars, stars) == ([], 0)


def test_every_fold_is_a_dot_and_the_published_mean_a_diamond():
    axes, _, _ = drawn(box_figure([panel({})], "Title"))
    dots = [np.asarray(found.get_offsets()) for found in axes.collections]
    assert sorted(len(found) for found in dots) == [1, 2, 3, 3]
    heights = np.concatenate(dots)[:, 1]
    assert 0.97 in heights
    assert {0.5, 0.6, 0.85} <= {round(float(height), 6) for height in heights}


def test_a_figure_needs_a_metric_and_a_label():
    with pytest.raises(PredictionError, match="metric"):
        box_figure([], "Title")
    unlabelled = PredictionTable(
        (Prediction.from_samples("a", "a", None, np.array([[0.4, 0.6]])),), ClassTarget(("n", "y"))
    )
    with pytest.raises(PredictionError, match="label"):
        reliability_grid({"m": unlabelled})


def test_a_panel_is_drawn_for_each_model():
    rng = np.random.default_rng(0)
    predictions = []
    for i in range(40):
        p = rng.uniform(0.05, 0.95, (5, 1))
        samples = np.concatenate([1 - p, p], axis=1)
        predictions.append(Prediction.from_samples(f"s{i}", f"s{i}", i % 2, samples))
    table = PredictionTable(tuple(predictions), ClassTarget(("n", "y")))
    models = dict.fromkeys("abcd", table)
    for figure in (reliability_grid(models), uncertainty_grid(models)):
        titles = [axes.get_title(loc="left").split(":")[0] for axes in figure.axes]
        assert titles == ["a", "b", "c", "d"]
    groups = [label.get_text() for label in uncertainty_grid(models).axes[0].get_xticklabels()]
    wrong = sum(int(p.probs.argmax()) != p.label for p in predictions)
    assert groups == [f"correct\nn = {40 - wrong}", f"wrong\nn = {wrong}"]
