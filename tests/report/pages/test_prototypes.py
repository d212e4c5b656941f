from dataclasses import replace

from PIL import Image

from sgpmil.models import build_model, save_model
from sgpmil.report.pages.blocks import Prose, Table
from sgpmil.report.pages.prototypes import prototype_section


def words(section):
    return " ".join(block.text for block in section.blocks if isinstance(block, Prose))


def test_use_adds_up(run_material):
    section = prototype_section(run_material)
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert sum(int(row[1]) for row in table.rows) == 12 * 16
    counts = [int(row[1]) for row in table.rows]
    assert counts == sorted(counts, reverse=True)
    assert f"{len(counts)} of 5 are the nearest of some patch; {5 - len(counts)} are of none" in (
        words(section)
    )


def test_a_model_without_inducing_points(run_material, tmp_path):
    network = build_model("abmil", in_dim=4, num_classes=2)
    save_model(network, tmp_path / "checkpoint.safetensors", class_names=("normal", "tumour"))
    fold = replace(run_material.folds[0], checkpoint=tmp_path)
    section = prototype_section(replace(run_material, folds=(fold,)))
    assert words(section) == "There are no prototypes: abmil has no inducing points."


def test_without_embeddings(run_material):
    bare = replace(run_material, bags=None, bags_missing="They are gone.")
    assert "They are gone." in words(prototype_section(bare))


def test_damaged_slides_are_said_and_the_rest_is_shown(run_material, tmp_path):
    broken, whole = tmp_path / "broken.png", tmp_path / "whole.png"
    broken.write_bytes(b"no picture")
    Image.new("RGB", (256, 256)).save(whole)
    slides = run_material.folds[0].test.slide_ids
    files = {slide: broken if slide in slides[::2] else whole for slide in slides}
    sources = replace(run_material.sources, files=files)
    section = prototype_section(replace(run_material, sources=sources))
    assert "broken.png" in words(section)
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert sum(int(row[1]) for row in table.rows) == 12 * 16
