import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import expected_calibration_error
from sgpmil.evaluation.uncertainty.conformal import fit_conformal, set_metrics
from sgpmil.evaluation.uncertainty.temperature import fit_temperature
from sgpmil.report.figures.recalibration_figures import set_figure, temperature_figure
from tests.evaluation.tables import table_of
from tests.evaluation.uncertain_tables import model_table

from .test_curves import words


def test_reliability_before_and_after_against_sklearn():
    test = model_table(200, 3, seed=1, sharpness=3)
    temperature = fit_temperature(model_table(100, 3, seed=2, sharpness=3, name="v"))
    figure = temperature_figure([test], [temperature])
    text = words(figure)
    uppers = [axes for axes in figure.axes if axes.containers and "ECE" in axes.get_title("left")]
    for axes, table in zip(uppers, (test, temperature.apply(test)), strict=True):
        correct = table.probs.argmax(axis=1) == table.labels
        accuracy, confidence = calibration_curve(correct, table.probs.max(axis=1), n_bins=10)
        dots = axes.containers[0].lines[0]
        np.testing.assert_allclose(dots.get_xdata(), confidence)
        np.testing.assert_allclose(dots.get_ydata(), accuracy)
        assert f"ECE {expected_calibration_error(table.probs, table.labels):.3f}" in text
    assert f"Temperature {temperature.value:.2f}: ECE" in text
    assert "n = 200)" in text
    assert "Confidence in the predicted class" in text


def test_folds_are_scaled_each_by_its_own_temperature():
    tests = [model_table(40, 2, seed=k, sharpness=1 + k) for k in range(2)]
    temperatures = [
        fit_temperature(model_table(90, 2, seed=9 + k, sharpness=1 + k, name="v")) for k in range(2)
    ]
    text = words(temperature_figure(tests, temperatures))
    low, high = sorted(t.value for t in temperatures)
    assert f"Temperature {low:.2f} to {high:.2f}: ECE" in text
    probs = np.vstack([t.apply(test).probs for t, test in zip(temperatures, tests, strict=True)])
    labels = np.concatenate([test.labels for test in tests])
    assert f"ECE {expected_calibration_error(probs, labels):.3f}" in text
    assert "n = 80, 2 folds" in text


def test_sets_show_coverage_with_wilson_intervals_and_size():
    validation, test = model_table(60, 3, seed=1), model_table(90, 3, seed=2)
    metrics = [set_metrics(fit_conformal(validation, 0.8, m), test) for m in ("lac", "aps")]
    figure = set_figure(metrics)
    upper, lower = figure.axes
    for number, own in enumerate(metrics):
        points = upper.containers[number]
        expected = [own.coverage, *own.class_coverage]
        np.testing.assert_allclose(points.lines[0].get_ydata(), expected)
        covered = [own.class_covered.sum(), *own.class_covered]
        counts = [own.num_slides, *own.class_slides]
        (bars,) = points.lines[2]
        for segment, hit, count in zip(bars.get_segments(), covered, counts, strict=True):
            ends = binomtest(int(hit), int(count)).proportion_ci(method="wilson")
            np.testing.assert_allclose(segment[:, 1], [ends.low, ends.high], atol=1e-9)
        heights = [bar.get_height() for bar in lower.containers[number]]
        np.testing.assert_allclose(heights, [own.mean_size, *own.class_size])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "promised: 0.8",
        f"LAC: coverage {metrics[0].coverage:.3f}, size {metrics[0].mean_size:.2f}",
        f"APS: coverage {metrics[1].coverage:.3f}, size {metrics[1].mean_size:.2f}",
    ]
    ticks = [label.get_text() for label in lower.get_xticklabels()]
    assert ticks[0] == "all\nn = 90"
    assert ticks[1] == f"class 0\nn = {int((test.labels == 0).sum())}"


def test_the_names_of_many_classes_do_not_meet():
    names = tuple(f"subtype number {c}" for c in range(6))
    validation, test = (
        replace(model_table(60, 6, seed=seed), target=ClassTarget(names)) for seed in (1, 2)
    )
    figure = set_figure([set_metrics(fit_conformal(validation, 0.8), test)])
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    boxes = [t.get_window_extent(renderer) for t in figure.axes[1].get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    legend = figure.legends[0].get_window_extent(renderer)
    assert not any(legend.overlaps(axes.get_window_extent(renderer)) for axes in figure.axes)


def test_a_class_without_slides_has_no_point():
    table = table_of([[0.6, 0.3, 0.1]] * 12, [0, 1] * 6, ("a", "b", "a class of a long name"))
    figure = set_figure([set_metrics(fit_conformal(table, 0.8), table)])
    assert len(figure.axes[0].containers[0].lines[0].get_xdata()) == 3  # all, a, b
    ticks = [label.get_text() for label in figure.axes[1].get_xticklabels()]
    assert ticks[-1] == "a class of a\nlong name\nn = 0"


def test_names_are_no_formulas():
    table = table_of([[0.6, 0.4]] * 12, [0, 1] * 6, ("a", r"$\frac$"))
    figure = set_figure([set_metrics(fit_conformal(table, 0.8), table)])
    figure.canvas.draw()
    assert figure.axes[1].get_xticklabels()[-1].get_text() == "$\\frac$\nn = 6"


def test_nothing_to_draw():
    table = model_table(20, 2, seed=1)
    unlabelled = table_of([[0.5, 0.5]], [None], table.class_names)
    with pytest.raises(PredictionError, match="slides with labels to draw"):
        temperature_figure([unlabelled], [fit_temperature(table)])
    with pytest.raises(PredictionError, match="0 different ones"):
        set_figure([])
    one, other = (set_metrics(fit_conformal(table, c), table) for c in (0.7, 0.8))
    with pytest.raises(PredictionError, match="2 different ones"):
        set_figure([one, other])
