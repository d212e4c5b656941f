import matplotlib
import numpy as np
import pytest
from matplotlib.colors import Normalize
from PIL import Image

from sgpmil.explanation.maps import score_map
from sgpmil.report.figures.canvas import new_figure, plain_words
from sgpmil.report.figures.map_drawing import (
    draw_heat,
    draw_outlines,
    draw_scale_bar,
    draw_slide,
    prepare_axes,
    scale_bar_length,
)
from sgpmil.runs.slide_picture import SlidePicture


def axes_of(view):
    figure = new_figure(4.0, 3.0)
    axes = figure.add_subplot()
    prepare_axes(axes, view, "a $title$")
    return figure, axes


def pixel(figure, axes, x, y):
    """Give the colour that was drawn at a place of the slide."""
    column, row = axes.transData.transform((x, y))
    image = np.asarray(figure.canvas.buffer_rgba())
    return image[image.shape[0] - 1 - int(row), int(column), :3].astype(int)


@pytest.mark.parametrize("mpp", [None, 0.05, 0.2501, 0.5, 3.7])
@pytest.mark.parametrize("width", [3.0, 512.0, 40_000.0, 123_456.0, 3e5])
def test_scale_bars_are_round_and_neither_long_nor_short(width, mpp):
    pixels, text = scale_bar_length(width, mpp)
    assert 0.11 * width < pixels <= 0.3 * width * (1 + 1e-9)
    number, unit = text.replace(",", "").split()
    assert f"{float(number):.0e}"[0] in "125"
    in_microns = {"mm": 1000, "µm": 1, "px": 1}[unit] * float(number)
    assert in_microns == pytest.approx(pixels * (mpp or 1))


def test_the_bar_that_is_drawn_is_as_long_as_it_says():
    figure, axes = axes_of((0.0, 4000.0, 3000.0, 0.0))
    draw_scale_bar(axes, (0.0, 4000.0, 3000.0, 0.0), 0.25)
    figure.canvas.draw()
    image = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
    dark = (image.sum(axis=2) < 60).sum(axis=1)
    left, right = (axes.transData.transform((x, 0))[0] for x in (0, 800))  # 200 µm
    assert dark.max() == pytest.approx(right - left, abs=2)


def test_colours_lie_on_their_patches_and_let_the_slide_shine_through():
    view = (0.0, 1000.0, 700.0, 0.0)
    figure, axes = axes_of(view)
    white = np.full((70, 100, 3), 255, np.uint8)
    white[:, 50:] = 0
    picture = SlidePicture(white, (1000, 700))
    draw_slide(axes, picture, pale=True)
    drawn = score_map(np.array([[100, 100], [600, 400]]), 200, np.array([0.25, 1.0]))
    draw_heat(axes, drawn, "Reds", Normalize(0, 1), over_slide=True)
    figure.canvas.draw()
    empty = pixel(figure, axes, 200, 500)
    np.testing.assert_array_equal(empty, 255)  # the slide, where no patch is
    dark = pixel(figure, axes, 950, 100)
    assert 100 < dark[0] < 140  # black is made pale
    for (x, y), value, ground in (((200, 200), 0.25, 255), ((700, 500), 1.0, dark[0])):
        colour = 255 * np.array(matplotlib.colormaps["Reds"](value)[:3])
        seen = pixel(figure, axes, x, y)
        for edge in (-97, 97):  # up to the patch's borders
            np.testing.assert_allclose(pixel(figure, axes, x + edge, y + edge), seen, atol=2)
        np.testing.assert_allclose(seen, 0.72 * colour + 0.28 * ground, atol=2)


def test_a_pale_slide_is_its_luma():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
    _, axes = axes_of((0.0, 50.0, 40.0, 0.0))
    image = draw_slide(axes, SlidePicture(pixels, (50, 40)), pale=True)
    found = np.asarray(image.get_array()).astype(float)
    luma = np.asarray(Image.fromarray(pixels).convert("L")).astype(float)
    np.testing.assert_allclose(found[..., 0], 255 - 0.55 * (255 - luma), atol=1.2)
    assert (found[..., 0] == found[..., 1]).all()


def test_without_a_slide_there_is_a_canvas():
    _, axes = axes_of((0.0, 50.0, 40.0, 0.0))
    assert draw_slide(axes, SlidePicture()) is None
    assert not axes.images


def test_outlines_are_closed_and_do_not_move_the_view():
    _, axes = axes_of((0.0, 50.0, 40.0, 0.0))
    ring = np.array([[10.0, 10.0], [500.0, 10.0], [10.0, 30.0]])
    draw_outlines(axes, SlidePicture(outlines=(ring,), outlined="tumour $1$"), legend=True)
    (line,) = axes.lines
    np.testing.assert_array_equal(line.get_xydata(), [*ring, ring[0]])
    assert axes.get_xlim() == (0, 50)
    assert axes.get_ylim() == (40, 0)
    assert axes.get_legend().get_texts()[0].get_text() == plain_words("tumour $1$")
