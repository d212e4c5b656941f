from dataclasses import replace

import pytest
from PIL import Image

from sgpmil.evaluation import PredictionTable
from sgpmil.explanation import ExplainOptions
from sgpmil.explanation import explain as explain_run
from sgpmil.models import build_model, save_model
from sgpmil.report.pages import slides
from sgpmil.report.pages.blocks import Prose, SlideCard, Table
from sgpmil.report.pages.slides import prototype_section, slides_section

from .reported_run import material


def explain(material):
    return explain_run(ExplainOptions(run=material.path), material)


@pytest.fixture
def drawn(monkeypatch):
    """The class of every map that is drawn."""
    classes = []
    draw = slides.attention_map_figure

    def note(scores, title, class_index, class_name, *arguments, **options):
        classes.append((title.split("predicted ")[1].split()[0], class_index, class_name))
        return draw(scores, title, class_index, class_name, *arguments, **options)

    monkeypatch.setattr(slides, "attention_map_figure", note)
    return classes


def test_a_colour_means_the_same_on_every_map(tmp_path, drawn):
    section = slides_section(explain(material(path=tmp_path, num_folds=1)), 2)
    assert {predicted for predicted, _, _ in drawn} == {"normal", "tumour"}
    assert {shown for _, *shown in map(tuple, drawn) for shown in [tuple(shown)]} == {(1, "tumour")}
    texts = [block.text for block in section.blocks if isinstance(block, Prose)]
    assert "Signed maps are for “tumour”, whatever the prediction." in texts
    alts = [b.image.alt for b in section.blocks if isinstance(b, SlideCard) and b.image]
    assert alts
    assert all("scores of the patches for tumour" in alt for alt in alts)


def test_a_class_without_a_right_slide_is_said(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    only = tuple(p for p in found.folds[0].test.predictions if p.label == 1)
    fold = replace(found.folds[0], test=PredictionTable(only, found.target))
    section = slides_section(explain(replace(found, folds=(fold,))), 1)
    texts = [block.text for block in section.blocks if isinstance(block, Prose)]
    (best,) = (text for text in texts if text.startswith("The right prediction"))
    assert best.endswith("There is none of 'normal'.")


def words(section):
    return " ".join(block.text for block in section.blocks if isinstance(block, Prose))


def test_use_adds_up(run_material):
    section = prototype_section(explain(run_material))
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert sum(int(row[1]) for row in table.rows) == 12 * 16
    counts = [int(row[1]) for row in table.rows]
    assert counts == sorted(counts, reverse=True)
    assert f"{len(counts)} of 5 have patches; {5 - len(counts)} have none" in words(section)


def test_a_model_without_inducing_points(run_material, tmp_path):
    network = build_model("abmil", in_dim=4, num_classes=2)
    save_model(network, tmp_path / "checkpoint.safetensors", class_names=("normal", "tumour"))
    fold = replace(run_material.folds[0], checkpoint=tmp_path)
    section = prototype_section(explain(replace(run_material, folds=(fold,))))
    assert words(section) == "There are no prototypes: abmil has no inducing points."


def test_without_embeddings(run_material):
    bare = replace(run_material, bags=None, bags_missing="They are gone.")
    assert "They are gone." in words(prototype_section(explain(bare)))


def test_damaged_slides_are_said_and_the_rest_is_shown(run_material, tmp_path):
    broken, whole = tmp_path / "broken.png", tmp_path / "whole.png"
    broken.write_bytes(b"no picture")
    Image.new("RGB", (256, 256)).save(whole)
    slides = run_material.folds[0].test.slide_ids
    files = {slide: broken if slide in slides[::2] else whole for slide in slides}
    sources = replace(run_material.sources, files=files)
    section = prototype_section(explain(replace(run_material, sources=sources)))
    assert "broken.png" in words(section)
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert sum(int(row[1]) for row in table.rows) == 12 * 16
