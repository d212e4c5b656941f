from dataclasses import replace

import pytest
from PIL import Image

from sgpmil.evaluation import PredictionTable
from sgpmil.explanation import ExplainOptions
from sgpmil.explanation import explain as explain_run
from sgpmil.explanation.confidence import run_sets
from sgpmil.models import build_model, save_model
from sgpmil.models.process_use import ProcessUse
from sgpmil.report.pages import slides
from sgpmil.report.pages.blocks import Prose, SlideCard, Table
from sgpmil.report.pages.slides import prototype_section, slide_list_section, slides_section

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


def test_an_ensemble_shows_its_disagreement(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    fold = found.folds[0]
    rows = tuple(replace(p, disagreement=0.02 * i) for i, p in enumerate(fold.test.predictions))
    several = replace(found, folds=(replace(fold, test=PredictionTable(rows, found.target)),))
    section = slides_section(explain(several), 1)
    assert "Most disputed" in words(section)
    cards = [block for block in section.blocks if isinstance(block, SlideCard)]
    assert cards[-1].slide_id == rows[-1].slide_id
    assert cards[-1].facts.startswith("all models together; entropy")
    assert "0.220 between models" in cards[-1].facts
    (table,) = slide_list_section(several, run_sets(several, 0.9), True).blocks
    column = table.header.index("Disagreement")
    shown = {row[0]: row[column] for row in table.rows}
    assert shown == {p.slide_id: f"{p.disagreement:.3f}" for p in rows}
    (plain,) = slide_list_section(found, run_sets(found, 0.9), True).blocks
    assert "Disagreement" not in plain.header
    assert "Most disputed" not in words(slides_section(explain(found), 1))


def test_prototypes_of_an_idle_process_are_no_more_than_groups(run_material):
    idle = ProcessUse(0.001, 0.0006, 0.975, 3000)
    assert "idle" in words(prototype_section(explain(run_material), idle))
    assert "idle" not in words(prototype_section(explain(run_material)))


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
