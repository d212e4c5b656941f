from dataclasses import replace
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from sgpmil.errors import ExplanationError, PredictionError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.key_patches import cut_patches, key_patches
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.patch_figures import AttentionPanel, attention_figure, key_patch_figure
from sgpmil.runs.slide_picture import SlidePicture
from sgpmil.slides.reading import open_slide
from tests.report.figures.scored_grid import SIDE, grid_scores
from tests.slides.extraction.drawn_files import write_slide

pytest.importorskip("tifffile", reason="pip install '.[slides]'")


def all_of(found):
    return [patch for patches in found.values() for patch in patches]


def rows(figure):
    return [axes for axes in figure.axes if axes.get_title(loc="left") != "Where they are"]


def test_pictures_are_the_slides_own_pixels(tmp_path):
    pixels = write_slide(tmp_path / "a.tiff")
    scores = grid_scores(3, 2, origin=(128, 64))
    found = all_of(key_patches(scores, 1))
    with open_slide(tmp_path / "a.tiff") as slide:
        small = cut_patches(slide, found, 128)
        large = cut_patches(slide, found, SIDE)
    assert set(small) == {patch.patch for patch in found}
    for number, image in small.items():
        x, y = scores.coords[number]
        np.testing.assert_array_equal(image, pixels[y : y + 128, x : x + 128])
    assert {image.shape for image in large.values()} == {(192, 192, 3)}


def test_each_kind_is_a_row_with_its_numbers_and_places():
    scores = grid_scores(8, 6)
    found = key_patches(scores, 1, most=5)
    images = {p.patch: np.full((8, 8, 3), p.patch, np.uint8) for p in all_of(found)}
    figure = key_patch_figure(scores, found, "slide", "tumour", SlidePicture(mpp=0.5), images)
    kinds = list(found)
    assert kinds == ["attention", "evidence", "unsure"]
    for axes, kind in zip(rows(figure), kinds, strict=True):
        drawn = [int(np.asarray(image.get_array())[0, 0, 0]) for image in axes.images]
        assert drawn == [patch.patch for patch in found[kind]]
        marked = sum(patch.label == 1 for patch in found[kind])
        assert len(axes.lines) == marked
    first = found["attention"][0]
    told = rows(figure)[0].texts[0].get_text()
    assert told.startswith(f"{48 * first.attention:.2f}"[:3])
    assert "±" in told
    place = next(a for a in figure.axes if a.get_title(loc="left") == "Where they are")
    frames = [patch for patch in place.patches if isinstance(patch, Rectangle)]
    outer = {tuple(frame.get_xy()) for frame in frames if frame.get_width() == SIDE}
    assert outer == {patch.corner for patch in found["attention"]}
    assert len(frames) == len(all_of(found))


def test_without_pictures_and_places_patches_are_numbers(tmp_path):
    placed = grid_scores(evidence=False)
    found = key_patches(placed, 1, most=3)
    figure = key_patch_figure(placed, found, "slide", "tumour")
    patch = found["attention"][0]
    text = rows(figure)[0].texts[0].get_text()
    assert text == f"patch {patch.patch}\nx {patch.corner[0]:,}\ny {patch.corner[1]:,}"
    save_figure(figure, tmp_path / "a.png", dpi=40)
    nowhere = replace(placed, coords=None)
    figure = key_patch_figure(nowhere, key_patches(nowhere, 1, most=3), "slide", "tumour")
    assert rows(figure) == figure.axes
    assert rows(figure)[0].texts[0].get_text() == f"patch {patch.patch}"


def test_nothing_to_draw():
    with pytest.raises(ExplanationError, match="patches to draw"):
        key_patch_figure(grid_scores(), {}, "slide", "tumour")


def random_scores(num, evidence=True, seed=0):
    rng = np.random.default_rng(seed)
    weight, logit = rng.gamma(0.7, size=num), rng.normal(size=(num, 3))
    return InstanceScores(
        attention_mean=weight,
        attention_std=0.2 * weight,
        evidence_mean=weight[:, None] * logit if evidence else None,
        evidence_std=0.2 * weight[:, None] * np.abs(logit) if evidence else None,
        instance_labels=np.arange(num) % 2,
    )


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("evidence", [False, True])
def test_instances_are_drawn_in_order_with_frames_of_attention(tmp_path, colour, evidence):
    scores = random_scores(10, evidence)
    # The picture of instance k is the constant k, so that it can be told again.
    images = np.broadcast_to(
        np.arange(10.0).reshape(10, 1, 1, 1) / 10, (10, 4, 4, 3) if colour else (10, 4, 4, 1)
    )
    panel = AttentionPanel("bag", images if colour else images[..., 0], scores, class_index=2)
    figure = attention_figure([panel])
    axes = figure.axes[0]
    if evidence:
        e = scores.evidence_mean
        ranked = e[:, 2] - (e[:, 0] + e[:, 1]) / 2
    else:
        ranked = scores.attention_mean
    expected = sorted(range(10), key=lambda k: -ranked[k])
    drawn = [round(float(np.asarray(image.get_array()).flat[0]) * 10) for image in axes.images]
    assert drawn == expected
    frames = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    relative = scores.attention_mean / scores.attention_mean.max()
    for frame, k in zip(frames, expected, strict=True):
        np.testing.assert_allclose(
            frame.get_edgecolor(), matplotlib.colormaps["viridis"](relative[k])
        )
    assert len(axes.lines) == int((scores.instance_labels > 0).sum())
    texts = [text.get_text() for text in axes.texts]
    first = expected[0]
    assert texts[0].lstrip("+").startswith(f"{ranked[first]:.2f}")
    save_figure(figure, tmp_path / "a.png", dpi=40)


def test_long_bags_are_cut_and_say_so(tmp_path):
    panels = [
        AttentionPanel("long", np.ones((50, 2, 2)), random_scores(50)),
        AttentionPanel("one", np.zeros((1, 2, 2)), random_scores(1)),
    ]
    figure = attention_figure(panels, max_instances=14)
    assert len(figure.axes[0].images) == 14
    assert "14 of 50 shown" in figure.axes[0].get_title(loc="left")
    assert len(figure.axes[1].images) == 1
    save_figure(figure, tmp_path / "a.png", dpi=40)


def test_small_scores_are_told_in_a_power_of_ten():
    scores = InstanceScores(np.array([2e-4, 1e-4]), np.array([1e-5, 1e-5]))
    axes = attention_figure([AttentionPanel("bag", np.ones((2, 3, 3)), scores)]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["2.00 ± 0.10", "1.00 ± 0.10"]
    assert "attention × 1e4" in axes.get_title(loc="left")


def test_blocks_do_not_overlap():
    panels = [AttentionPanel(f"{k}", np.ones((30, 2, 2)), random_scores(30)) for k in range(3)]
    figure = attention_figure(panels)
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for upper, lower in pairwise(boxes):
        assert upper.y0 >= lower.y1


def test_names_are_no_formulas():
    figure = attention_figure([AttentionPanel(r"$\frac$", np.ones((4, 2, 2)), random_scores(4))])
    figure.canvas.draw()
    assert figure.axes[0].get_title(loc="left").startswith(r"\$\frac\$ (n = 4")


def test_unusable():
    with pytest.raises(PredictionError, match="at least one bag"):
        attention_figure([])
    with pytest.raises(PredictionError, match=r"shape \(5, h, w\)"):
        AttentionPanel("bag", np.ones((4, 2, 2)), random_scores(5))
    with pytest.raises(PredictionError, match=r"but got \(5, 2, 2, 4\)"):
        AttentionPanel("bag", np.ones((5, 2, 2, 4)), random_scores(5))
