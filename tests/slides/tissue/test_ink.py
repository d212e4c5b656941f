import numpy as np
import pytest

pytest.importorskip("cv2", reason="pip install 'sgpmil[slides]'")

from sgpmil.slides.tissue.ink import find_ink

from .drawn_slides import EOSIN, HAEMATOXYLIN

PIXEL = 8.0


def spot(colour, side=20):
    """Paint a square in the middle of glass; say which of its pixels are ink."""
    image = np.full((60, 60, 3), 243, dtype=np.float32)
    first, last = 30 - side // 2, 30 + side // 2
    image[first:last, first:last] = colour
    return find_ink(image, PIXEL)[first:last, first:last]


BLUE = [(40, 60, 180), (50, 45, 150), (89, 104, 190), (30, 40, 110), (36, 28, 107)]
GREEN = [(40, 150, 70), (20, 130, 130), (120, 200, 140)]
RED = [(215, 30, 40), (240, 50, 60), (190, 20, 50)]
BLACK = [(0, 0, 0), (12, 0, 8), (40, 40, 45), (90, 90, 95), (121, 121, 126)]


@pytest.mark.parametrize("colour", [*BLUE, *GREEN, *RED, *BLACK])
def test_inks(colour):
    assert spot(colour).all()


@pytest.mark.parametrize("eosin", [0.0, 0.05, 0.3, 0.8, 1.2])
@pytest.mark.parametrize("haematoxylin", [0.0, 0.1, 0.4, 0.8])
@pytest.mark.parametrize("glass", [243, 200])
def test_stains_are_no_ink(eosin, haematoxylin, glass):
    assert not spot(glass * np.exp(-eosin * EOSIN - haematoxylin * HAEMATOXYLIN)).any()


@pytest.mark.parametrize(
    "colour",
    # Blood, DAB, folds, the pale blue counterstain of immunohistochemistry, grey glass.
    [
        (200, 62, 60),
        (190, 80, 90),
        (120, 80, 50),
        (80, 30, 90),
        (135, 15, 45),
        (170, 180, 210),
        (160, 160, 160),
    ],
)
def test_what_else_is_no_ink(colour):
    assert not spot(colour).any()


def test_specks_are_no_strokes():
    assert not spot((40, 60, 180), side=4).any()
    assert not spot((0, 0, 0), side=4).any()


def test_the_blurred_edge_of_a_stroke_belongs_to_it():
    image = np.full((60, 60, 3), 243, dtype=np.float32)
    image[20:40, 20:40] = (215, 30, 40)
    image[20:40, 40:43] = (236, 190, 192)  # its edge
    image[20:40, 43:50] = (236, 180, 205)  # tissue beside it
    ink = find_ink(image, PIXEL)
    assert ink[20:40, 20:43].all()
    assert not ink[:, 43:].any()
