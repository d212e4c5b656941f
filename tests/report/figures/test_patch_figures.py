from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import Rectangle

pytest.importorskip("tifffile", reason="pip install 'sgpmil[slides]'")

from sgpmil.errors import ExplanationError
from sgpmil.explanation.key_patches import cut_patches, key_patches
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.patch_figures import key_patch_figure
from sgpmil.runs.slide_picture import SlidePicture
from sgpmil.slides.reading import open_slide
from tests.report.figures.scored_grid import SIDE, grid_scores
from tests.slides.extraction.drawn_files import write_slide


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
