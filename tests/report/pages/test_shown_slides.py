from dataclasses import replace

import pytest

from sgpmil.evaluation import PredictionTable
from sgpmil.report.pages import shown_slides
from sgpmil.report.pages.blocks import Prose, SlideCard
from sgpmil.report.pages.shown_slides import slides_section

from .reported_run import material


@pytest.fixture
def drawn(monkeypatch):
    """The class of every map that is drawn."""
    classes = []
    draw = shown_slides.attention_map_figure

    def note(scores, title, class_index, class_name, *arguments, **options):
        classes.append((title.split(": ")[1].split()[0], class_index, class_name))
        return draw(scores, title, class_index, class_name, *arguments, **options)

    monkeypatch.setattr(shown_slides, "attention_map_figure", note)
    return classes


def test_a_colour_means_the_same_on_every_map(tmp_path, drawn):
    section = slides_section(material(path=tmp_path, num_folds=1), 2, frozenset())
    assert {predicted for predicted, _, _ in drawn} == {"normal", "tumour"}
    assert {shown for _, *shown in map(tuple, drawn) for shown in [tuple(shown)]} == {(1, "tumour")}
    texts = [block.text for block in section.blocks if isinstance(block, Prose)]
    assert "Evidence is for “tumour” on every map, whatever was predicted." in texts
    alts = [b.image.alt for b in section.blocks if isinstance(b, SlideCard) and b.image]
    assert alts
    assert all("evidence for tumour" in alt for alt in alts)


def test_a_class_without_a_right_slide_is_said(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    only = tuple(p for p in found.folds[0].test.predictions if p.label == 1)
    fold = replace(found.folds[0], test=PredictionTable(only, found.target))
    section = slides_section(replace(found, folds=(fold,)), 1, frozenset())
    texts = [block.text for block in section.blocks if isinstance(block, Prose)]
    (best,) = (text for text in texts if text.startswith("The slide of each class"))
    assert best.endswith("There is none of 'normal'.")
