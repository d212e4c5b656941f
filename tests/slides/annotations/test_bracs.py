import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")

from shapely import box

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.bracs import bracs_rule
from sgpmil.slides.annotations.patch_labels import patch_labels
from sgpmil.slides.annotations.regions import Region, select_regions

DRAWN = [
    Region(box(0, 0, 10, 10), "DCIS"),
    Region(box(20, 0, 30, 10), "Invasive Carcinoma"),
    Region(box(40, 0, 50, 10), "ADH"),
    Region(box(60, 0, 70, 10), "UDH"),
]
CORNERS = np.array([[0, 0], [20, 0], [40, 0], [60, 0], [80, 0]])


@pytest.mark.parametrize(
    ("slide_class", "labels"),
    [("MT", [1, 1, 0, 0, -1]), ("Atypical", [0, 0, 1, 0, -1]), ("bt", [0, 0, 0, 1, -1])],
)
def test_labels_of_patches(slide_class, labels):
    drawn = select_regions(DRAWN, bracs_rule(slide_class), "here")
    assert patch_labels(CORNERS, 10, drawn).tolist() == labels


def test_variant_with_negative_tissue():
    drawn = select_regions(DRAWN, bracs_rule("MT", unannotated="negative"), "here")
    assert patch_labels(CORNERS, 10, drawn).tolist() == [1, 1, 0, 0, 0]


def test_unknown_names():
    with pytest.raises(AnnotationError, match="BT, AT or MT, but got 'tumour'"):
        bracs_rule("tumour")
    with pytest.raises(AnnotationError, match="but got 'Artefact'"):
        select_regions([Region(box(0, 0, 1, 1), "Artefact")], bracs_rule("MT"), "here")
