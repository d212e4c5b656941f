from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sgpmil.report.pages.typesetting import A4, Sheet, break_lines

TEXT = "Sets made so hold the true class of about 90% of slides, of which nothing is promised."


def drawn_widths(lines, size, weight="normal"):
    """Widths in points as they are drawn."""
    figure = Figure(dpi=720)
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = [figure.text(0, 0, line, fontsize=size, weight=weight) for line in lines]
    return [text.get_window_extent(renderer).width / 10 for text in texts]


@pytest.mark.parametrize("width", [55.0, 95.0, 200.0, 1000.0])
@pytest.mark.parametrize("bold", [False, True])
def test_no_line_is_wider_than_asked_and_no_word_is_lost(width, bold):
    lines = break_lines(TEXT, 8.0, width, bold=bold)
    assert " ".join(lines) == TEXT
    weight = "bold" if bold else "normal"
    assert max(drawn_widths(lines, 8, weight)) <= width * 1.02
    # Every line is as full as the next word lets it be.
    for line, after in pairwise(lines):
        assert drawn_widths([f"{line} {after.split()[0]}"], 8, weight)[0] > width * 0.98


def test_a_name_without_spaces_is_broken_where_it_must_be():
    name = "TCGA-" + "0123456789" * 12
    lines = break_lines(name, 14.0, 150.0)
    assert "".join(lines) == name
    assert max(drawn_widths(lines, 14)) <= 153


def test_what_does_not_fit_is_cut_with_an_ellipsis():
    lines = break_lines(TEXT, 8.0, 95.0, 2)
    assert len(lines) == 2
    assert lines[-1].endswith("…")
    assert TEXT.startswith(" ".join(lines)[:-1].rstrip())
    assert max(drawn_widths(lines, 8)) <= 97


@pytest.mark.parametrize("text", ["", " ", "W", "𝒳ø漢"])
def test_odd_texts(text):
    assert "".join(break_lines(text, 8.0, 1.0)) == text.strip()


def test_words_are_set_where_they_belong_and_never_as_formulas():
    figure = Figure(figsize=(A4[0] / 72, A4[1] / 72), dpi=72)
    sheet = Sheet(figure)
    end = sheet.words(50.0, 100.0, "$x_1$ costs $5", 10.0, width=400.0)
    assert end == pytest.approx(100 + 1.32 * 10)
    (text,) = figure.texts
    assert text.get_text() == "$x_1$ costs $5"
    renderer = FigureCanvasAgg(figure).get_renderer()
    box = text.get_window_extent(renderer)
    assert box.x0 == pytest.approx(50, abs=1.5)
    assert A4[1] - 115 < box.y0 < box.y1 < A4[1] - 98
