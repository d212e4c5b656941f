import numpy as np
import pytest
from sklearn.metrics import average_precision_score, precision_recall_curve

from sgpmil.errors import PredictionError
from sgpmil.report.figures.precision_recall_figures import (
    precision_at_recalls,
    precision_recall_figure,
)
from tests.evaluation.tables import random_table, table_of


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


def test_names_are_no_formulas():
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
