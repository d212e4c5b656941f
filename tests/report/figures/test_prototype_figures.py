import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import AxesImage

from sgpmil.errors import ExplanationError, SlideError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.prototypes import (
    NEUTRAL,
    PALETTE,
    Nuclei,
    PatchReference,
    PrototypeExplanation,
    PrototypeSummary,
    SlidePrototypes,
    explain_prototypes,
)
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.prototype_figures import label_map_figure, prototype_sheet
from sgpmil.runs.slide_picture import SlidePicture
from sgpmil.slides.reading import open_slide
from tests.explanation.prototypes.explained import attention_scores, labelled_bags, spread_model

COORDS = np.array([[0, 0], [100, 0], [0, 100], [200, 100], [300, 200]]) + np.array([40, 70])
SIDE = 100


def summary(index, num_patches, **values) -> PrototypeSummary:
    given = {
        "num_slides": 1,
        "num_labelled": num_patches,
        "num_cancerous": num_patches // 2,
        "mean_attention": 0.1,
        "relative_attention": 2.0,
        "own_contribution": -0.5,
        "overall_contribution": 0.1,
        "logit_mean": 0.3,
        "logit_at": 0.4,
        "logit_at_sd": 0.2,
        **values,
    }
    return PrototypeSummary(index=index, num_patches=num_patches, **given)


def by_hand(assigned, num_prototypes=14) -> PrototypeExplanation:
    """Number 13 is the most used of the fold, then 12 and so on: 3 and less are grey."""
    prototypes = [summary(m, 10 * m) for m in reversed(range(num_prototypes))]
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
    explanation = by_hand([13, 12, 4, 3, 1])
    figure = label_map_figure(scores(), explanation.slides["a"], explanation)
    (axes,) = figure.axes
    expected = [PALETTE[0], PALETTE[1], PALETTE[9], NEUTRAL, NEUTRAL]
    for (x, y), colour in zip(COORDS, expected, strict=True):
        for dx, dy in ((1, 1), (99, 1), (1, 99), (99, 99)):
            drawn = colour_at(axes, x + dx, y + dy)
            np.testing.assert_allclose(drawn, [*(255 * np.array(to_rgb(colour))), 255], atol=0.5)
    assert colour_at(axes, 290, 120)[3] == 0  # no patch: transparent


def test_the_legend_counts_the_patches_of_the_slide():
    explanation = by_hand([13, 13, 4, 3, 1])
    words = texts(label_map_figure(scores(), explanation.slides["a"], explanation, title="A"))
    assert "13: 2" in words
    assert "4: 1" in words
    assert "12: 0" in words
    assert "3 others: 2" in words  # of 3, 2 and 1: number 0 has no patch anywhere
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


@pytest.fixture
def slide_file(tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "s.png")
    return tmp_path / "s.png", pixels


def with_examples(*examples) -> PrototypeExplanation:
    slide = SlidePrototypes("s", np.zeros(4, dtype=np.int32), np.ones(4))
    prototypes = (summary(5, 3, examples=examples), summary(2, 1, examples=examples[:1]))
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
    figure = prototype_sheet(explanation, opening, picture_size=30)
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
    explanation = by_hand([13, 12, 4, 3, 1])
    words = texts(
        label_map_figure(scores(), explanation.slides["a"], explanation, title=r"$\frac$")
    )
    assert r"\$\frac\$ (n = 5" in words


def test_the_sheet_says_what_is_unused_and_what_is_too_few():
    words = texts(prototype_sheet(with_examples(), fewest_labelled=2, title="fold 1"))
    assert "fold 1: the 2 prototypes in use (1 of 3 unused); 4 patches, kernel correlation" in words
    assert "33 % of 3" in words
    assert "only 1 labelled" in words
    few = texts(prototype_sheet(with_examples(), most=1))
    assert "the 1 most used of 2 prototypes in use" in few


def test_the_sheet_leaves_out_what_is_not_known():
    bare = summary(1, 4, num_labelled=0, num_cancerous=0, relative_attention=float("nan"))
    slide = SlidePrototypes("s", np.ones(4, dtype=np.int32), np.ones(4))
    words = texts(prototype_sheet(PrototypeExplanation("cosine", {"s": slide}, (bare,), 0.0)))
    assert "Cancerous" not in words
    assert "the slide's mean" not in words
    assert "Nucleus types" not in words
    assert "Attention logit at\nthe prototype" in words


def test_a_damaged_slide_is_told(tmp_path):
    (tmp_path / "s.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    explanation = with_examples(PatchReference("s", 0, 0.9, (0, 0), 9))
    with pytest.raises(SlideError):
        prototype_sheet(explanation, lambda _: open_slide(tmp_path / "s.png"))


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
    figure = label_map_figure(known["s0"], explanation.slides["s0"], explanation)
    save_figure(figure, tmp_path / "map.png", dpi=40)
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_attention_of_nothing_still_draws():
    idle = summary(1, 4, relative_attention=0.0, own_contribution=0.0)
    slide = SlidePrototypes("s", np.ones(4, dtype=np.int32), np.ones(4))
    words = texts(prototype_sheet(PrototypeExplanation("cosine", {"s": slide}, (idle,), 0.0)))
    assert "+0" in words
