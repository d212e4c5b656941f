import numpy as np
import pytest

from sgpmil.errors import PredictionError
from sgpmil.report.figures.confusion_figures import confusion_figure


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
