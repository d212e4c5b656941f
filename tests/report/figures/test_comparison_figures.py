import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.comparison.comparability import FoldPredictions
from sgpmil.evaluation.comparison.compare import compare
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.report.figures.comparison_figures import comparison_figure, write_comparison_figure


def run_of(skill, seed, num_folds=5, num_slides=24):
    rng = np.random.default_rng(seed)
    folds = []
    for k in range(num_folds):
        slides = [f"{k}-{i}" for i in range(num_slides)]
        logits = rng.normal(size=num_slides) + skill * (2 * (np.arange(num_slides) % 2) - 1)
        p = 1 / (1 + np.exp(-logits))
        rows = tuple(
            Prediction.from_samples(slide, slide, i % 2, np.array([[1 - p[i], p[i]]]))
            for i, slide in enumerate(slides)
        )
        split = Fold(str(k), tuple(f"t{i}" for i in range(60)), (), tuple(slides))
        folds.append(
            FoldPredictions.of(str(k), PredictionTable(rows, ClassTarget(("no", "yes"))), split)
        )
    return folds


@pytest.fixture(scope="module")
def comparison():
    return compare({"ours": run_of(2.0, 1), "abmil": run_of(1.5, 2), "clam": run_of(0.2, 3)})


def panel(figure, title):
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def test_a_panel_a_metric_with_the_folds_of_each_run(comparison):
    figure = comparison_figure(comparison)
    figure.canvas.draw()
    shown = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert shown == [
        *("balanced accuracy", "accuracy", "AUC"),
        *("ACE", "NLL", "Brier score"),
    ]
    axes = panel(figure, "NLL")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["ours", "abmil", "clam"]
    assert axes.get_ylabel() == "lower is better"
    assert panel(figure, "AUC").get_ylabel() == "higher is better"
    for place, run in enumerate(comparison.runs):
        values = comparison.summary(run, "nll").values
        dots = axes.collections[place].get_offsets()
        np.testing.assert_allclose(dots[:, 1], values)
        assert (np.abs(dots[:, 0] - place) < 0.2).all()
        # The line of a fold passes through its dots.
        for fold in range(5):
            line = axes.lines[fold]
            assert line.get_xydata()[place] == pytest.approx(dots[fold])
    medians = [np.median(comparison.summary(run, "nll").values) for run in comparison.runs]
    drawn = [line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 1.4]
    np.testing.assert_allclose(drawn, medians)


def test_p_values_and_stars_are_those_of_the_comparison(comparison):
    axes = panel(comparison_figure(comparison), "NLL")
    texts = [text.get_text() for text in axes.texts]
    assert len(texts) == 2
    for text, run in zip(texts, ("abmil", "clam"), strict=True):
        p = comparison.test(run, "nll").corrected_holm
        expected = "<0.001" if p < 0.001 else f"{p:.2g}"
        assert text == ("★ " if p < 0.05 else "") + expected
    assert texts[1].startswith("★")
    legend = comparison_figure(comparison).get_supxlabel()
    assert "corrected for overlapping" in legend.replace("\n", " ")


def test_nothing_is_cut_off(comparison):
    for names in (("ours", "abmil"), ("ours", *(f"a-model-of-long-name-{k}" for k in range(8)))):
        runs = {name: run_of(1.0, k, num_folds=3) for k, name in enumerate(names)}
        figure = comparison_figure(compare(runs, metrics=["auc", "nll", "kappa", "ece", "brier"]))
        figure.canvas.draw()
        inside = figure.bbox.padded(2)
        texts = [figure._suptitle, figure._supxlabel]
        for axes in figure.axes:
            if axes.get_visible():
                texts += [*axes.get_xticklabels(), axes.yaxis.label, *axes.texts]
        for text in texts:
            box = text.get_window_extent()
            assert inside.x0 <= box.x0, text.get_text()
            assert box.x1 <= inside.x1, text.get_text()
            assert inside.y0 <= box.y0, text.get_text()
            assert box.y1 <= inside.y1, text.get_text()


def test_undefined_values_and_one_fold():
    runs = {"a": run_of(1.0, 1, num_slides=1), "b": run_of(0.5, 2, num_slides=1)}
    axes = panel(comparison_figure(compare(runs)), "AUC")  # a class is missing: nothing to draw
    assert len(axes.texts) == 0
    one = comparison_figure(compare({"a": run_of(1.0, 1, 1), "b": run_of(0.5, 2, 1)}))
    one.canvas.draw()
    assert "one fold" in one.get_suptitle()
    assert len(panel(one, "AUC").texts) == 0


def test_names_are_no_formulas():
    figure = comparison_figure(compare({r"a$\frac$": run_of(1.0, 1), r"b$\frac$": run_of(0.5, 2)}))
    figure.canvas.draw()
    assert figure.get_suptitle().startswith(r"a\$\frac\$ and 1 other")
    assert r"whether a\$\frac\$ is better" in figure.get_supxlabel().replace("\n", " ")


def test_file(tmp_path, comparison):
    path = write_comparison_figure(tmp_path / "figures", comparison)
    assert path == tmp_path / "figures" / "comparison.png"
    pixels = imread(path)[..., :3]
    assert (pixels < 0.9).any(axis=2).mean() > 0.01


def test_does_without_pyplot():
    module = "sgpmil.report.figures.comparison_figures"
    code = f"import sys, {module}; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
