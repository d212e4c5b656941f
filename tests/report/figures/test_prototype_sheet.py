import numpy as np
import pytest
from matplotlib.image import AxesImage

from sgpmil.explanation.prototypes import (
    Nuclei,
    PatchReference,
    PrototypeExplanation,
    SlidePrototypes,
    explain_prototypes,
)
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.prototype_sheet import prototype_sheet, read_pictures
from sgpmil.slides.reading import open_slide
from tests.explanation.prototypes.explained import attention_scores, labelled_bags, spread_model
from tests.report.figures.test_prototype_map import summary, texts


@pytest.fixture
def slide_file(tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "s.png")
    return tmp_path / "s.png", pixels


def with_examples(*examples) -> PrototypeExplanation:
    slide = SlidePrototypes("s", np.zeros(4, dtype=np.int32), np.ones(4))
    prototypes = (
        summary(5, 3, group=0, examples=examples),
        summary(2, 1, group=1, examples=examples[:1]),
    )
    return PrototypeExplanation("kernel", {"s": slide}, (*prototypes, summary(0, 0)), 0.0)


def test_the_examples_are_cut_from_the_slides(slide_file):
    path, pixels = slide_file
    opened = []

    def opening(slide_id):
        opened.append(slide_id)
        return open_slide(path) if slide_id == "s" else None

    explanation = with_examples(
        PatchReference("s", 0, 0.9, (10, 20), 30),
        PatchReference("gone", 7, 0.8, (0, 0), 30),
        PatchReference("s", 3, 0.7),
    )
    pictures, problems = read_pictures(explanation.used, opening, size=30)
    assert problems == ()
    figure = prototype_sheet(explanation, pictures)
    images = [c for axes in figure.axes for c in axes.get_children() if isinstance(c, AxesImage)]
    assert len(images) == 2  # one a prototype; the others are named
    for image in images:
        np.testing.assert_array_equal(np.asarray(image.get_array()), pixels[20:50, 10:40])
    words = texts(figure)
    assert "gone\n7" in words
    assert "s\n3" in words
    assert sorted(opened) == ["gone", "s"]  # each once


def test_without_slides_patches_are_named():
    explanation = with_examples(
        PatchReference("TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF", 12, 0.9, (0, 0), 9)
    )
    words = texts(prototype_sheet(explanation))
    assert "TCGA-3C…9A5DF\n12" in words
    assert "Most similar patches: slide, number" in words


def test_names_are_no_formulas():
    explanation = with_examples(PatchReference(r"a$\frac$", 12, 0.9, (0, 0), 9))
    words = texts(prototype_sheet(explanation, title=r"fold $\frac$"))
    assert "a\\$\\frac\\$\n12" in words
    assert r"fold \$\frac\$: the" in words


def test_the_sheet_says_what_is_unused_and_what_is_too_few():
    words = texts(prototype_sheet(with_examples(), fewest_labelled=2, title="fold 1"))
    assert "fold 1: the 2 prototypes in use (1 of 3 unused); 4 patches, kernel correlation" in words
    assert "33 % of 3" in words
    assert "only 1 labelled" in words
    few = texts(prototype_sheet(with_examples(), most=1))
    assert "1 of the 2 prototypes in use (1 of 3 unused); 4 patches, kernel correlation" in few
    assert "(of each colour the most used, then" in few


def test_the_sheet_leaves_out_what_is_not_known():
    bare = summary(1, 4, group=0, num_labelled=0, num_positive=0, relative_attention=float("nan"))
    slide = SlidePrototypes("s", np.ones(4, dtype=np.int32), np.ones(4))
    words = texts(prototype_sheet(PrototypeExplanation("cosine", {"s": slide}, (bare,), 0.0)))
    assert "Positive" not in words
    assert "Log-odds" not in words
    assert "a training patch" not in words
    assert "the slide's mean" not in words
    assert "Nucleus types" not in words
    assert "Attention logit at\nthe prototype" in words


def test_a_damaged_slide_is_told_and_the_others_are_shown(slide_file, tmp_path):
    path, _ = slide_file
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    files = {"s": path, "b": tmp_path / "b.png"}
    whole, broken = (PatchReference(name, 0, 0.9, (0, 0), 9) for name in ("s", "b"))
    explanation = with_examples(broken, whole)
    pictures, problems = read_pictures(explanation.used, lambda name: open_slide(files[name]))
    assert set(pictures) == {whole}
    (problem,) = problems
    assert "b.png" in problem
    assert "b\n0" in texts(prototype_sheet(explanation, pictures))


def test_the_prototype_itself_is_cut_from_its_training_slide(slide_file):
    path, pixels = slide_file
    there = PatchReference("s", 4, 1.0, (50, 10), 40)
    gone = PatchReference("training", 17, 1.0, (1024, 2048), 40)
    slide = SlidePrototypes("a", np.zeros(4, dtype=np.int32), np.ones(4))
    prototypes = (
        summary(5, 3, group=0, origin=there, single=(-1.5, 1.5), single_sd=(0.4, 0.4)),
        summary(2, 1, group=1, origin=gone, single=(2.5, -2.5), single_sd=(0.2, 0.2)),
    )
    explanation = PrototypeExplanation(
        "kernel", {"a": slide}, prototypes, 0.0, 0.7, ("normal", "tumour")
    )
    pictures, _ = read_pictures(
        explanation.used, lambda name: open_slide(path) if name == "s" else None, size=40
    )
    figure = prototype_sheet(explanation, pictures)
    (image,) = (c for axes in figure.axes for c in axes.get_children() if isinstance(c, AxesImage))
    np.testing.assert_array_equal(np.asarray(image.get_array()), pixels[10:50, 50:90])
    words = texts(figure)
    assert "s\npatch 4\nx 50\ny 10" in words
    assert "training\npatch 17\nx 1,024\ny 2,048" in words
    assert words.count("no image") == 1
    assert "Log-odds of tumour" in words
    assert "+1.5 ± 0.4" in words
    assert "−2.5 ± 0.2" in words
    assert "(all together +0.7)" in words


def test_of_three_classes_the_likeliest_is_named():
    origin = PatchReference("t", 4, 1.0)
    single = {"single": (-2.0, -3.0, 1.0), "single_sd": (0.1, 0.1, 0.3), "origin": origin}
    slide = SlidePrototypes("a", np.zeros(4, dtype=np.int32), np.ones(4))
    explanation = PrototypeExplanation(
        "kernel", {"a": slide}, (summary(0, 4, group=0, **single),), 0.0, 0.1, ("a", "b", "c")
    )
    words = texts(prototype_sheet(explanation))
    assert "c: +1.0 ± 0.3" in words
    assert "Log-odds of its likeliest class" in words
    assert "t\npatch 4" in words


def test_a_whole_explanation_is_drawn(tmp_path):
    bags = labelled_bags()
    rng = np.random.default_rng(0)
    types = ("Neoplastic", "Inflammatory", "Dead")
    nuclei = Nuclei(rng.uniform(0, 90, (300, 2)), rng.integers(0, 3, 300), types)
    known = attention_scores(bags)
    explanation = explain_prototypes(
        spread_model(), bags, scores=known, measure="centred", nuclei=lambda _: nuclei
    )
    sheet = prototype_sheet(explanation, most=4)
    words = texts(sheet)
    for name in types:
        assert name in words
    for prototype in explanation.used[:4]:
        assert f"{sum(prototype.nuclei):,} nuclei" in words
    save_figure(sheet, tmp_path / "sheet.png", dpi=40)
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_attention_of_nothing_still_draws():
    idle = summary(1, 4, group=0, relative_attention=0.0, attention_part=0.0)
    slide = SlidePrototypes("s", np.ones(4, dtype=np.int32), np.ones(4))
    words = texts(prototype_sheet(PrototypeExplanation("cosine", {"s": slide}, (idle,), 0.0)))
    assert "+0" in words
