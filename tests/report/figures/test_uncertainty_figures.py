import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from scipy.stats import binomtest, ttest_ind
from sklearn.calibration import calibration_curve

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import expected_calibration_error
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import uncertainty_over_folds
from sgpmil.evaluation.uncertainty.conformal import fit_conformal, set_metrics
from sgpmil.evaluation.uncertainty.measures import risk_coverage, uncertainty
from sgpmil.evaluation.uncertainty.temperature import fit_temperature
from sgpmil.report.figures.uncertainty_figures import (
    correct_wrong_figure,
    risk_coverage_figure,
    save_figure,
    set_figure,
    temperature_figure,
    write_uncertainty_figures,
)
from tests.evaluation.tables import table_of
from tests.evaluation.uncertain_tables import model_table

from .test_curves import words


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def test_boxes_are_the_quartiles_and_the_test_is_scipys():
    table = model_table(90, 3, seed=1, sharpness=2)
    wrong = table.probs.argmax(axis=1) != table.labels
    figure = correct_wrong_figure(table)
    assert len(figure.axes) == 3
    for axes, measure in zip(figure.axes, ("std", "entropy", "mutual_information"), strict=True):
        values = uncertainty(table, measure)
        medians = [line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 2.4]
        np.testing.assert_allclose(medians, [np.median(values[~wrong]), np.median(values[wrong])])
        for box, group in zip(axes.patches, (values[~wrong], values[wrong]), strict=True):
            corners = box.get_path().vertices[:, 1]
            expected = np.quantile(group, [0.25, 0.75])
            np.testing.assert_allclose([corners.min(), corners.max()], expected)
        groups = (values[wrong], values[~wrong])
        p = ttest_ind(*groups, equal_var=False, alternative="greater").pvalue
        told = "one-sided p < 0.001" if p < 0.001 else f"one-sided p = {p:.3f}"
        assert texts_of(axes) == [told + (" *" if p < 0.05 else ", n.s.")]
        ticks = [label.get_text() for label in axes.get_xticklabels()]
        assert ticks == [f"correct\nn = {(~wrong).sum()}", f"wrong\nn = {wrong.sum()}"]
        # Every slide is a point, at its height.
        heights = np.concatenate([dots.get_offsets()[:, 1] for dots in axes.collections])
        np.testing.assert_allclose(np.sort(heights), np.sort(values))
    assert "Entropy (nats)" in words(figure)


def test_the_colours_are_those_of_okabe_and_ito():
    axes = correct_wrong_figure(model_table(90, 3, seed=1)).axes[0]
    colours = [to_rgb(dots.get_facecolor()[0][:3]) for dots in axes.collections]
    assert colours == [to_rgb("#0072B2"), to_rgb("#D55E00")]  # blue and vermilion


def test_many_slides_are_not_drawn_one_by_one():
    axes = correct_wrong_figure(model_table(700, 3, seed=1), ["entropy"]).axes[0]
    assert len(axes.collections) == 0


@pytest.mark.parametrize("num_wrong", [0, 1, 3])
def test_few_wrong_slides(num_wrong):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([5, 1], size=10)
    labels = probs.argmax(axis=1)
    labels[:num_wrong] = 1 - labels[:num_wrong]
    figure = correct_wrong_figure(table_of(probs, labels))
    (axes,) = figure.axes  # a model without a posterior has entropy alone
    assert axes.get_ylabel() == "Entropy (nats)"
    assert len(axes.patches) == 1  # three points have no quartiles
    if num_wrong < 2:
        assert texts_of(axes) == ["no test"]
    else:
        assert texts_of(axes)[0].startswith("one-sided p")


@pytest.mark.parametrize(("num_wrong", "told"), [(5, "\n(may be chance)"), (16, " *")])
def test_few_errors_have_no_star(num_wrong, told):
    labels = np.arange(40) % 2
    is_wrong = np.arange(40) < num_wrong
    confidence = np.where(is_wrong, 0.6, 0.9) + np.linspace(0, 0.01, 40)
    said = np.where(is_wrong, 1 - labels, labels)
    probs = np.where(said == 1, confidence, 1 - confidence)
    (axes,) = correct_wrong_figure(table_of(np.stack([1 - probs, probs], axis=1), labels)).axes
    assert texts_of(axes) == [f"one-sided p < 0.001{told}"]


def test_risk_coverage_shows_measures_oracle_and_random():
    table = model_table(60, 3, seed=4)
    figure = risk_coverage_figure(table, ["std", "max_probability"])
    lines = figure.axes[0].lines
    wrong = table.probs.argmax(axis=1) != table.labels
    orders = [uncertainty(table, "std"), 1 - table.probs.max(axis=1), wrong.astype(float)]
    for line, order in zip(lines, orders, strict=False):
        curve = risk_coverage(order, wrong)
        np.testing.assert_allclose(line.get_xdata(), curve.coverage)
        np.testing.assert_allclose(line.get_ydata(), curve.risk)
    np.testing.assert_allclose(lines[3].get_ydata(), wrong.mean())
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    areas = [risk_coverage(order, wrong).aurc for order in orders]
    assert names == [
        f"standard deviation, predicted class: {areas[0]:.3f}",
        f"1 − largest probability: {areas[1]:.3f}",
        f"oracle: {areas[2]:.3f}",
        f"random: {wrong.mean():.3f}",
    ]


@pytest.mark.parametrize("draw", [correct_wrong_figure, risk_coverage_figure])
def test_legends_and_labels_stay_off_the_data(draw):
    figure = draw(model_table(60, 3, seed=4))
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    width, height = figure.canvas.get_width_height()
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        assert not any(box.overlaps(axes.get_window_extent(renderer)) for axes in figure.axes)
    title = figure.texts[0] if figure.texts else figure.axes[0].title
    extent = title.get_window_extent(renderer)
    assert extent.x0 >= 0
    assert extent.x1 <= width
    assert extent.y1 <= height


def test_one_panel_has_room_for_its_title():
    figure = correct_wrong_figure(model_table(60, 3, seed=4), ["std"])
    figure.canvas.draw()
    extent = figure._suptitle.get_window_extent(figure.canvas.get_renderer())
    assert extent.x1 <= figure.canvas.get_width_height()[0]


def test_figures_of_a_run(tmp_path):
    folds = [
        (model_table(20, 3, seed=k), model_table(30, 3, seed=50 + k, name="v")) for k in range(2)
    ]
    tests = [test for test, _ in folds]
    written = write_uncertainty_figures(tmp_path / "new", tests, uncertainty_over_folds(folds))
    assert [path.name for path in written] == [
        "uncertainty.png",
        "risk-coverage.png",
        "temperature.png",
        "prediction-sets.png",
    ]
    assert all(path.stat().st_size > 10_000 for path in written)
    some = [folds[0], (folds[1][0], None)]
    written = write_uncertainty_figures(tmp_path, tests[:2], uncertainty_over_folds(some))
    assert [path.name for path in written] == ["uncertainty.png", "risk-coverage.png"]


def test_nothing_to_draw(tmp_path):
    unlabelled = table_of([[0.5, 0.5]], [None])
    for draw in (correct_wrong_figure, risk_coverage_figure):
        with pytest.raises(PredictionError, match="slides with labels to draw"):
            draw(unlabelled)
        with pytest.raises(PredictionError, match="with std, but they carry none"):
            draw(table_of([[0.9, 0.1]], [0]), ["std"])
    save_figure(
        correct_wrong_figure(
            PredictionTable(model_table(1, 2).predictions, ClassTarget(("a", "b")))
        ),
        tmp_path / "one.png",
        dpi=40,
    )
    assert (tmp_path / "one.png").exists()


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


def test_nothing_to_draw_either():
    table = model_table(20, 2, seed=1)
    unlabelled = table_of([[0.5, 0.5]], [None], table.class_names)
    with pytest.raises(PredictionError, match="slides with labels to draw"):
        temperature_figure([unlabelled], [fit_temperature(table)])
    with pytest.raises(PredictionError, match="0 different ones"):
        set_figure([])
    one, other = (set_metrics(fit_conformal(table, c), table) for c in (0.7, 0.8))
    with pytest.raises(PredictionError, match="2 different ones"):
        set_figure([one, other])
