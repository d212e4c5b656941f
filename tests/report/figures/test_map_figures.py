from dataclasses import replace

import numpy as np
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.evaluation import InstanceScores
from sgpmil.explanation.map_layers import MapLimits, map_limits
from sgpmil.explanation.slide_explanation import ModelScores
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.map_drawing import shown_part
from sgpmil.report.figures.map_figures import attention_map_figure, model_row_figure
from sgpmil.report.pages.case_page import CASE_LOOK
from sgpmil.runs.slide_picture import SlidePicture
from tests.evaluation.tables import random_scores
from tests.report.figures.scored_grid import SIDE, grid_scores

RING = np.array([[1024.0, 512.0], [2048.0, 512.0], [2048.0, 1536.0]])


def picture(**changes):
    pixels = np.full((40, 60, 3), 255, np.uint8)
    given = {"size": (6000, 4000), "outlines": (RING,), "outlined": "tumour", "mpp": 0.5}
    return SlidePicture(pixels, **{**given, **changes})


def panels(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}


def words(figure):
    return " ".join(figure.get_supxlabel().split())


def map_of(axes):
    """The scores that were drawn: the last image, over the slide where there is one."""
    return axes.images[-1]


def values_at(image, scores):
    """Read a drawn map at the centres of the patches."""
    left, right, bottom, top = image.get_extent()
    array = np.ma.filled(image.get_array(), np.nan)
    rows, columns = array.shape
    centres = scores.coords + SIDE / 2
    column = ((centres[:, 0] - left) / (right - left) * columns).astype(int)
    row = ((centres[:, 1] - top) / (bottom - top) * rows).astype(int)
    return array[row, column]


def test_every_layer_lies_where_the_patches_are():
    scores = grid_scores()
    figure = attention_map_figure(scores, "slide 1", 1, "tumour", picture())
    found = panels(figure)
    e = scores.evidence_mean
    margin = 24 * (e[:, 1] - (e[:, 0] + e[:, 2]) / 2)
    expected = {
        "Attention, posterior mean": 24 * scores.attention_mean,
        "Attention, posterior sd": 24 * scores.attention_std,
        "Evidence for tumour": margin,
        "Evidence, posterior sd": 24 * scores.score_std("evidence", 1),
    }
    assert set(found) == {"Slide", *expected}
    for title, values in expected.items():
        image = map_of(found[title])
        np.testing.assert_allclose(values_at(image, scores), values, rtol=1e-5)
        low, high = scores.coords.min(axis=0), scores.coords.max(axis=0) + SIDE
        assert list(image.get_extent()) == [low[0], high[0], high[1], low[1]]
        # The slide beneath, at its own place.
        assert list(found[title].images[0].get_extent()) == [0, 6000, 4000, 0]
        assert any(np.array_equal(line.get_xydata()[:3], RING) for line in found[title].lines)
    low, high = map_of(found["Evidence for tumour"]).get_clim()
    assert low == -high
    assert map_of(found["Attention, posterior mean"]).get_clim()[0] == 0
    assert "(24 patches)" in figure.get_suptitle()
    views = {(*axes.get_xlim(), *axes.get_ylim()) for axes in found.values()}
    assert views == {shown_part(scores.coords, SIDE)}


def test_patches_that_lie_on_no_grid_are_drawn_too():
    rng = np.random.default_rng(1)
    coords = rng.permutation(400)[:30, None] * np.array([[701, 0]]) + np.array([[13, 0]])
    coords[:, 1] = rng.integers(0, 9000, 30)
    scores = replace(
        grid_scores(6, 5), coords=coords.astype(np.int64), instance_labels=np.zeros(30, np.int64)
    )
    figure = attention_map_figure(scores, "slide")
    found = values_at(map_of(panels(figure)["Attention, posterior mean"]), scores)
    np.testing.assert_allclose(found, 30 * scores.attention_mean, rtol=1e-4)


def test_what_the_model_does_not_give_has_no_panel(tmp_path):
    plain = attention_map_figure(grid_scores(deviation=0.0), "slide", 1, "tumour")
    assert set(panels(plain)) == {"Attention", "Evidence for tumour"}
    only = attention_map_figure(grid_scores(evidence=False), "slide")
    assert set(panels(only)) == {"Attention, posterior mean", "Attention, posterior sd"}
    one = attention_map_figure(grid_scores(1, 1), "slide")
    save_figure(one, tmp_path / "one.png", dpi=40)
    assert (tmp_path / "one.png").stat().st_size > 1000


@pytest.mark.parametrize("deviation", [0.0, 0.3])
def test_a_patch_alone_and_novelty_have_panels(deviation):
    rng = np.random.default_rng(3)
    scores = replace(
        grid_scores(deviation=deviation),
        single_mean=rng.normal(size=(24, 3)),
        single_std=deviation * rng.random((24, 3)),
        novelty=rng.random(24),
    )
    figure = attention_map_figure(scores, "slide", 2, "tumour")
    found = panels(figure)
    spreads = {"Attention, posterior sd", "Evidence, posterior sd", "Patch alone, posterior sd"}
    assert spreads & set(found) == (spreads if deviation else set())
    single = map_of(found["Patch alone: tumour"])
    np.testing.assert_allclose(values_at(single, scores), scores.single_mean[:, 2], rtol=1e-5)
    assert single.get_clim()[0] == -single.get_clim()[1]
    novelty = map_of(found["Unlike the training patches"])
    np.testing.assert_allclose(values_at(novelty, scores), scores.novelty, rtol=1e-5)
    assert novelty.get_clim() == (1, 2)
    assert "holds this patch only" in words(figure)


def test_limits_that_slides_share_are_taken_and_said():
    limits = MapLimits(5.0, 2.0, 0.5, 0.25)
    figure = attention_map_figure(grid_scores(), "slide", 1, "tumour", limits=limits)
    ends = {title: map_of(axes).get_clim()[1] for title, axes in panels(figure).items()}
    assert ends == {
        "Attention, posterior mean": 5.0,
        "Attention, posterior sd": 2.0,
        "Evidence for tumour": 0.5,
        "Evidence, posterior sd": 0.25,
    }
    assert "the same on every slide" in words(figure)
    own = attention_map_figure(grid_scores(), "slide", 1, "tumour")
    assert "those of this slide" in words(own)


@pytest.mark.parametrize("scale", ["rank", "minmax"])
def test_relative_scales_say_that_they_are(scale):
    figure = attention_map_figure(
        grid_scores(), "slide", scale=scale, limits=MapLimits(9.0, 9.0, 9.0, 9.0)
    )
    for title, axes in panels(figure).items():
        low = -1 if title.startswith("Evidence for") else 0
        assert map_of(axes).get_clim() == (low, 1)
    labels = [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()]
    assert len(labels) == 4
    assert all("slide" in label for label in labels)
    assert "do not compare" in words(figure)


def test_no_words_overlap():
    figure = attention_map_figure(grid_scores(), "slide 1", 1, "tumour", picture())
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    # With titles, ticks and labels.
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    boxes += [text.get_window_extent(renderer) for text in figure.texts]
    assert len(boxes) == 11
    page = figure.bbox
    for number, box in enumerate(boxes):
        assert page.x0 - 1 <= box.x0
        assert box.x1 <= page.x1 + 1
        for other in boxes[number + 1 :]:
            width = min(box.x1, other.x1) - max(box.x0, other.x0)
            height = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert min(width, height) <= 1


@pytest.mark.parametrize(("columns", "rows"), [(1, 60), (60, 1), (2, 2)])
@pytest.mark.parametrize("has_slide", [False, True])
def test_any_shape_of_tissue_leaves_the_words_on_the_page(columns, rows, has_slide):
    title = "TCGA-XX-0000-01Z-00-DX1.00000000-0000-0000-0000-000000000000: adenocarcinoma"
    scores = grid_scores(columns, rows, deviation=0.0, evidence=False)
    figure = attention_map_figure(scores, title, picture=picture() if has_slide else None)
    figure.canvas.draw()
    for text in figure.texts:
        assert text.get_window_extent().x1 <= figure.bbox.x1 + 1
    for axes in panels(figure).values():
        box = axes.get_window_extent()
        assert min(box.width, box.height) > 3
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_what_is_shown_holds_all_patches_and_is_no_stripe():
    wide = shown_part(np.array([[0, 0], [9900, 0]]), 100)
    assert wide == (-300.0, 10300.0, 1800.0, -1700.0)
    left, right, bottom, top = shown_part(np.array([[0, 0], [900, 900]]), 100)
    assert (left, right, bottom, top) == (-30.0, 1030.0, 1030.0, -30.0)


def test_models_stand_in_one_row_over_the_same_place():
    first, second = grid_scores(seed=1), grid_scores(5, 4, seed=2, deviation=0.0)
    figure = model_row_figure(
        [ModelScores("sgpmil", first), ModelScores("abmil", second)], picture(), "slide"
    )
    found = panels(figure)
    assert list(found) == ["Slide", "sgpmil", "abmil"]
    for name, scores in (("sgpmil", first), ("abmil", second)):
        np.testing.assert_allclose(
            values_at(map_of(found[name]), scores),
            scores.num_instances * scores.attention_mean,
            rtol=1e-5,
        )
    assert len({(*axes.get_xlim(), *axes.get_ylim()) for axes in found.values()}) == 1
    bars = [axes for axes in figure.axes if axes not in found.values()]
    assert len(bars) == 2
    figure.canvas.draw()
    tops = {round(axes.get_window_extent().y1) for axes in found.values()}
    assert max(tops) - min(tops) <= 2


def test_a_models_colours_are_limited_as_on_the_other_slides_of_its_run():
    scores, run = grid_scores(seed=1), MapLimits(50.0, 1.0, 1.0, 1.0)
    figure = model_row_figure([ModelScores("own", scores, run), ModelScores("alone", scores)])
    shared, alone = (map_of(axes).get_clim()[1] for axes in panels(figure).values())
    assert shared == 50.0
    assert alone == pytest.approx(map_limits([(scores, 0)]).attention)


def test_models_share_a_legend_on_a_relative_scale():
    models = [ModelScores(name, grid_scores(seed=k)) for k, name in enumerate("abc")]
    figure = model_row_figure(models, scale="rank")
    found = panels(figure)
    assert [map_of(axes).get_clim() for axes in found.values()] == [(0, 1)] * 3
    (bar,) = [axes for axes in figure.axes if axes not in found.values()]
    assert bar.get_xlabel() == "instance score: rank within the slide"


def test_unusable():
    with pytest.raises(ExplanationError, match="coordinates"):
        attention_map_figure(InstanceScores(np.ones(2), np.ones(2)), "slide")
    with pytest.raises(ExplanationError, match="at least one model"):
        model_row_figure([])


def test_names_are_not_formulas(tmp_path):
    figure = attention_map_figure(grid_scores(), r"a$\frac$", 1, "$x_", picture(outlined="$a$b$"))
    save_figure(figure, tmp_path / "a.png", dpi=30)
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize("size", [(1, 6), (6, 1), (5, 5)])
def test_titles_stay_over_their_own_panels(size):
    columns, rows = size
    scores = random_scores(num=columns * rows)
    places = SIDE * np.stack(np.meshgrid(range(columns), range(rows)), -1).reshape(-1, 2)
    scores = replace(scores, coords=places, patch_size=SIDE)
    figure = attention_map_figure(scores, "slide", picture=None, marks=(), look=CASE_LOOK)
    figure.canvas.draw()
    titles = [axes.title if axes.get_title() else axes._left_title for axes in figure.axes]
    boxes = [title.get_window_extent() for title in titles if title.get_text()]
    assert len(boxes) >= 5
    for number, box in enumerate(boxes):
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])
