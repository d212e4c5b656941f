import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import adaptive_calibration_error, expected_calibration_error
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.curves import (
    confusion_figure,
    precision_at_recalls,
    precision_recall_figure,
    reliability_figure,
    roc_figure,
)
from tests.evaluation.tables import table_of


def random_table(num_slides=60, num_classes=2, seed=0):
    rng = np.random.default_rng(seed)
    names = tuple(f"class {c}" for c in range(num_classes))
    predictions = []
    for i in range(num_slides):
        probs = rng.dirichlet(np.ones(num_classes))
        label = int(rng.choice(num_classes, p=probs))
        predictions.append(Prediction.from_samples(f"{i}", f"{i}", label, probs[None]))
    return PredictionTable(tuple(predictions), ClassTarget(names))


def words(figure):
    figure.canvas.draw()
    texts = [text.get_text() for text in figure.texts]
    if figure.get_suptitle():
        texts.append(figure.get_suptitle())
    for axes in figure.axes:
        texts += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
        if axes.get_legend() is not None:
            texts += [text.get_text() for text in axes.get_legend().get_texts()]
    return " | ".join(texts)


def test_reliability_figure_shows_the_curve_of_sklearn(tmp_path):
    table = random_table(200)
    figure = reliability_figure(table)
    correct = table.probs.argmax(1) == table.labels
    accuracy, confidence = calibration_curve(correct, table.probs.max(1), n_bins=10)
    dots = figure.axes[0].containers[1].lines[0]
    np.testing.assert_allclose(dots.get_xdata(), confidence)
    np.testing.assert_allclose(dots.get_ydata(), accuracy)
    text = words(figure)
    assert "n = 200" in text
    assert f"ECE {expected_calibration_error(table.probs, table.labels):.3f}" in text
    assert f"ACE {adaptive_calibration_error(table.probs, table.labels):.3f}" in text
    assert "Confidence in the predicted class" in text
    save_figure(figure, tmp_path / "r.png", dpi=40)


def test_reliability_intervals_are_those_of_wilson():
    table = random_table(50, 3)
    figure = reliability_figure(table, num_bins=5)
    (segments,) = figure.axes[0].containers[1].lines[2]
    top = table.probs.max(1)
    correct = table.probs.argmax(1) == table.labels
    bins = np.minimum((top * 5).astype(int), 4)
    for segment, b in zip(segments.get_segments(), np.unique(bins), strict=True):
        hits, count = int(correct[bins == b].sum()), int((bins == b).sum())
        expected = binomtest(hits, count).proportion_ci(method="wilson")
        np.testing.assert_allclose(segment[:, 1], [expected.low, expected.high], atol=1e-9)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_roc_figure_tells_mean_and_sd_over_folds(num_classes):
    tables = [random_table(50 + k, num_classes, seed=k) for k in range(4)]
    text = words(roc_figure(tables))
    for c in range(num_classes) if num_classes > 2 else [1]:
        areas = [roc_auc_score(t.labels == c, t.probs[:, c]) for t in tables]
        assert f"class {c}: AUC {np.mean(areas):.3f} ± {np.std(areas, ddof=1):.3f}" in text
    assert "4 folds (n = 50–53 a fold)" in text
    assert "False-positive rate" in text


def test_roc_curves_enclose_their_areas():
    tables = [random_table(50, seed=k) for k in range(3)]
    figure = roc_figure(tables)
    chance, *folds, mean = figure.axes[0].lines
    areas = [np.trapezoid(line.get_ydata(), line.get_xdata()) for line in folds]
    expected = [roc_auc_score(t.labels, t.probs[:, 1]) for t in tables]
    np.testing.assert_allclose(areas, expected)
    area_of_mean = np.trapezoid(mean.get_ydata(), mean.get_xdata())
    assert area_of_mean == pytest.approx(np.mean(expected), abs=0.01)
    assert chance.get_label() == "chance"


def test_roc_of_one_fold_and_of_an_absent_class():
    table = random_table(30)
    area = roc_auc_score(table.labels, table.probs[:, 1])
    text = words(roc_figure([table]))
    assert f"class 1: AUC {area:.3f}" in text
    assert "±" not in text
    negatives = tuple(p for p in table.predictions if p.label == 0)
    assert "AUC undefined" in words(roc_figure([PredictionTable(negatives, table.target)]))


def test_names_are_no_formulas():
    table = replace(random_table(30), target=ClassTarget(("no", r"a$\frac$")))
    assert r"a\$\frac\$: AUC" in words(roc_figure([table]))


def test_nothing_to_draw():
    with pytest.raises(PredictionError, match="slides with labels"):
        roc_figure([])
    with pytest.raises(PredictionError, match="slides with labels"):
        reliability_figure(PredictionTable((), ClassTarget(("a", "b"))))
    with pytest.raises(PredictionError, match="in every fold"):
        roc_figure([random_table(9, 2), random_table(9, 3)])


def test_figures_do_without_pyplot():
    code = "import sys, sgpmil.report.figures.curves; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def labels_of(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_the_area_under_the_curve_is_the_average_precision(rng):
    for _ in range(20):
        positive = rng.uniform(size=30) < 0.3
        positive[0] = True
        scores = rng.integers(0, 6, size=30).astype(float)  # with ties
        recalls = np.linspace(0, 1, 40_001)
        heights = precision_at_recalls(scores, positive, recalls)
        area = float(heights[1:].mean())
        assert area == pytest.approx(average_precision_score(positive, scores), abs=2e-3)
        precision, recall, _ = precision_recall_curve(positive, scores)
        for p, r in zip(precision[:-1], recall[:-1], strict=True):
            if r in recall[recall != r] or list(recall).count(r) > 1:
                continue  # several thresholds of one recall: the highest counts
            (found,) = precision_at_recalls(scores, positive, np.array([r]))
            assert found == pytest.approx(p)


def test_one_fold():
    table = random_table(40, seed=1)
    figure = precision_recall_figure([table])
    expected = average_precision_score(table.labels == 1, table.probs[:, 1])
    assert labels_of(figure) == [f"class 1: AP {expected:.3f}"]
    chance = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert chance[0].get_ydata()[0] == pytest.approx((table.labels == 1).mean())


def test_folds_are_averaged():
    tables = [random_table(40, seed=seed) for seed in range(3)]
    figure = precision_recall_figure(tables)
    areas = [average_precision_score(t.labels == 1, t.probs[:, 1]) for t in tables]
    assert labels_of(figure) == [f"class 1: AP {np.mean(areas):.3f} ± {np.std(areas, ddof=1):.3f}"]
    thin = [line.get_ydata() for line in figure.axes[0].lines if line.get_linewidth() == 0.7]
    (bold,) = [line.get_ydata() for line in figure.axes[0].lines if line.get_linewidth() == 2.2]
    np.testing.assert_allclose(bold, np.mean(thin, axis=0))


def test_several_classes_each_against_the_rest():
    table = random_table(60, 3, seed=2)
    names = labels_of(precision_recall_figure([table]))
    for c in range(3):
        area = average_precision_score(table.labels == c, table.probs[:, c])
        assert names[c] == f"class {c}: AP {area:.3f}"


def test_a_class_without_slides_has_no_curve():
    table = table_of([[0.2, 0.8], [0.3, 0.7]], [1, 1])
    assert labels_of(precision_recall_figure([table])) == ["c1: AP undefined"]


def test_names_are_no_formulas_either():
    table = table_of([[0.2, 0.8], [0.3, 0.7]], [1, 0], names=("a", r"$\frac$"))
    figure = precision_recall_figure([table])
    figure.canvas.draw()
    assert labels_of(figure) == [r"\$\frac\$: AP 1.000"]


def test_what_cannot_be_drawn():
    with pytest.raises(PredictionError, match="slides with labels to draw"):
        precision_recall_figure([table_of([[0.5, 0.5]], [None])])
    with pytest.raises(PredictionError, match="slides with labels to draw"):
        precision_recall_figure([])
    other = table_of([[0.5, 0.5]], [0], names=("x", "y"))
    with pytest.raises(PredictionError, match="in every fold, but they differ"):
        precision_recall_figure([table_of([[0.5, 0.5]], [0]), other])


def test_counts_and_shares_stand_in_their_cells():
    confusion = np.array([[8, 2], [1, 3]])
    figure = confusion_figure(confusion, ("normal", "tumour $x$"))
    axes = figure.axes[0]
    found = {text.get_position(): text.get_text() for text in axes.texts}
    assert found == {(0, 0): "8\n80%", (1, 0): "2\n20%", (0, 1): "1\n25%", (1, 1): "3\n75%"}
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.8, 0.2], [0.25, 0.75]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Predicted class", "Label")
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["normal", "tumour $x$"]
    figure.canvas.draw()
    # Letters are told from their ground.
    colours = {text.get_text(): text.get_color() for text in axes.texts}
    assert (colours["8\n80%"], colours["2\n20%"]) == ("white", "black")


def test_a_class_without_slides_is_empty():
    axes = confusion_figure(np.array([[0, 0], [1, 3]]), ("a", "b")).axes[0]
    assert axes.texts[0].get_text() == "0\n0%"


def test_every_class_has_a_name():
    with pytest.raises(PredictionError, match="confusion matrix of 3 × 3"):
        confusion_figure(np.zeros((2, 2), dtype=np.int64), ("a", "b", "c"))
