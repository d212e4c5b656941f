import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import AxesImage

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.prototypes import (
    NEUTRAL,
    PALETTE,
    PrototypeExplanation,
    PrototypeSummary,
    SlidePrototypes,
)
from sgpmil.report.figures.prototype_map import label_map_figure
from sgpmil.runs.slide_picture import SlidePicture

COORDS = np.array([[0, 0], [100, 0], [0, 100], [200, 100], [300, 200]]) + np.array([40, 70])
SIDE = 100


def summary(index, num_patches, **values) -> PrototypeSummary:
    given = {
        "num_slides": 1,
        "num_labelled": num_patches,
        "num_positive": num_patches // 2,
        "mean_attention": 0.1,
        "relative_attention": 2.0,
        "attention_part": 0.3,
        "own_contribution": -0.5,
        "overall_contribution": 0.1,
        "logit_mean": 0.3,
        "logit_at": 0.4,
        "logit_at_sd": 0.2,
        **values,
    }
    return PrototypeSummary(index=index, num_patches=num_patches, **given)


def by_hand(assigned, num_prototypes=14) -> PrototypeExplanation:
    """Number 13 is the most used of the fold, then 12 and so on: 4 to 1 share a colour."""
    prototypes = [
        summary(m, 10 * m, group=min(num_prototypes - 1 - m, 9) if m else None)
        for m in reversed(range(num_prototypes))
    ]
    slide = SlidePrototypes("a", np.array(assigned, dtype=np.int32), np.ones(len(assigned)))
    return PrototypeExplanation("cosine", {"a": slide}, tuple(prototypes), 0.0)


def scores(count=5, **values) -> InstanceScores:
    given = {"coords": COORDS[:count], "patch_size": SIDE, **values}
    return InstanceScores(np.ones(count), np.zeros(count), **given)


def texts(figure) -> str:
    figure.draw_without_rendering()
    found = [text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text"))]
    return "\n".join(found)


def colour_at(axes, x, y) -> np.ndarray:
    """Look up the drawn colour at a place of the slide, as matplotlib lays images out."""
    image = [child for child in axes.get_children() if isinstance(child, AxesImage)][-1]
    left, right, bottom, top = image.get_extent()
    pixels = np.asarray(image.get_array())
    column = int((x - left) / (right - left) * pixels.shape[1])
    row = int((y - top) / (bottom - top) * pixels.shape[0])
    return pixels[row, column]


def test_each_patch_has_the_colour_of_its_prototype_at_its_place():
    explanation = by_hand([13, 12, 4, 3, 0])
    figure = label_map_figure(scores(), explanation.slides["a"], explanation)
    (axes,) = figure.axes
    expected = [PALETTE[0], PALETTE[1], PALETTE[9], PALETTE[9], NEUTRAL]
    for (x, y), colour in zip(COORDS, expected, strict=True):
        for dx, dy in ((1, 1), (99, 1), (1, 99), (99, 99)):
            drawn = colour_at(axes, x + dx, y + dy)
            np.testing.assert_allclose(drawn, [*(255 * np.array(to_rgb(colour))), 255], atol=0.5)
    assert colour_at(axes, 290, 120)[3] == 0  # no patch: transparent


def test_the_legend_counts_the_patches_of_the_slide():
    explanation = by_hand([13, 13, 4, 3, 1])
    words = texts(label_map_figure(scores(), explanation.slides["a"], explanation, title="A"))
    assert "13: 2" in words
    assert "12: 0" in words
    assert "4 and 3 others: 3" in words  # 3, 2 and 1: number 0 has no patch anywhere
    assert "A (n = 5 patches; 13 of 14 prototypes used on 1 slide)" in words


def test_the_slide_stands_beside_its_map_in_the_same_frame():
    explanation = by_hand([13, 12, 4, 3, 1])
    pixels = np.full((60, 80, 3), 200, dtype=np.uint8)
    outline = np.array([[10.0, 10.0], [200.0, 10.0], [200.0, 150.0]])
    picture = SlidePicture(pixels, (400, 300), (outline,), "tumour", 0.5)
    figure = label_map_figure(scores(), explanation.slides["a"], explanation, picture)
    one, other = figure.axes
    assert one.get_xlim() == other.get_xlim()
    assert one.get_ylim() == other.get_ylim()
    beneath = next(c for c in one.get_children() if isinstance(c, AxesImage))
    assert tuple(beneath.get_extent()) == (0, 400, 300, 0)
    for axes in (one, other):
        assert any(np.array_equal(line.get_xydata()[:3], outline) for line in axes.lines)
    assert "tumour" in texts(figure)


def test_colours_are_the_same_on_slides_that_use_other_prototypes():
    explanation = by_hand([13, 12, 4, 3, 1])
    other = SlidePrototypes("b", np.array([4], dtype=np.int32), np.ones(1))
    figure = label_map_figure(scores(1), other, explanation)
    drawn = colour_at(figure.axes[0], 90, 120)
    np.testing.assert_allclose(drawn[:3], 255 * np.array(to_rgb(PALETTE[9])), atol=0.5)


def test_maps_that_cannot_be_drawn_are_refused():
    explanation = by_hand([13, 12, 4, 3, 1])
    slide = explanation.slides["a"]
    with pytest.raises(ExplanationError, match="coordinates"):
        label_map_figure(scores(coords=None), slide, explanation)
    with pytest.raises(ExplanationError, match="of the 5 patches of 'a', but got 4"):
        label_map_figure(scores(4), slide, explanation)


def test_names_are_no_formulas():
    explanation = by_hand([13, 12, 4, 3, 1])
    words = texts(
        label_map_figure(scores(), explanation.slides["a"], explanation, title=r"$\frac$")
    )
    assert r"\$\frac\$ (n = 5" in words
