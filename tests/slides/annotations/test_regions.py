import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")

from shapely import box

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.patch_labels import patch_labels
from sgpmil.slides.annotations.regions import (
    CAMELYON,
    Region,
    RegionRule,
    bracs_rule,
    select_regions,
)


def test_exclusions_are_holes_in_every_positive_region():
    drawn = [
        Region(box(0, 0, 10, 10), "Tumor"),
        Region(box(5, 0, 15, 10), "_0"),
        Region(box(4, 4, 8, 6), "_2"),
        Region(box(9, 0, 10, 1), "Exclusion"),
    ]
    found = select_regions(drawn, CAMELYON, "here")
    assert found.positive_area().area == pytest.approx(150 - 8 - 1)
    assert [region.name for region in found.positive] == ["Tumor", "_0"]
    assert [region.polygon.area for region in found.positive] == pytest.approx([91, 93])
    assert found.unannotated == "negative"


@pytest.mark.parametrize("name", ["Tumor", "_0", "_1", "Metastases", " TUMOR ", "None"])
def test_groups_of_camelyon(name):
    assert select_regions([Region(box(0, 0, 1, 1), name)], CAMELYON, "here").is_positive


def test_a_region_that_is_excluded_whole_is_gone():
    drawn = [Region(box(1, 1, 2, 2), "Tumor"), Region(box(0, 0, 4, 4), "normal")]
    found = select_regions(drawn, CAMELYON, "here")
    assert not found.is_positive
    assert found.positive_area().is_empty


def test_unknown_group_is_refused():
    drawn = [Region(box(0, 0, 1, 1), "Tumour cells")]
    with pytest.raises(AnnotationError, match=r"'Metastases'.* but got 'Tumour cells'"):
        select_regions(drawn, CAMELYON, "here")


def test_others_are_negative_unless_the_rule_lists_them():
    drawn = [Region(box(0, 0, 1, 1), "Tumor"), Region(box(2, 0, 4, 1), "Stroma")]
    found = select_regions(drawn, RegionRule(positive=("tumor",)), "here")
    assert found.positive_area().area == 1
    assert found.negative_area().area == 2
    strict = RegionRule(positive=("tumor",), negative=("Necrosis",))
    with pytest.raises(AnnotationError, match="but got 'Stroma'"):
        select_regions(drawn, strict, "here")


def test_without_names_there_must_be_one_class():
    one = [Region(box(0, 0, 1, 1), "a"), Region(box(2, 0, 3, 1), "A")]
    assert len(select_regions(one, RegionRule(), "here").positive) == 2
    two = [*one, Region(box(4, 0, 5, 1), "b")]
    with pytest.raises(AnnotationError, match="one class in here, but got 'A', 'b'"):
        select_regions(two, RegionRule(), "here")
    rule = RegionRule(excluded=("b",))
    assert len(select_regions(two, rule, "here").positive) == 2


def test_nothing_drawn():
    found = select_regions([], RegionRule(), "here")
    assert not found.is_positive
    assert found.positive_area().area == 0


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
