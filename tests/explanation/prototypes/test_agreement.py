import numpy as np
import pytest
import shapely
from scipy.stats import entropy

from sgpmil.errors import ExplanationError
from sgpmil.explanation.prototypes import normalised_mutual_information, tissue_classes
from sgpmil.slides.annotations import Region


def test_it_is_the_formula():
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 3, 500)
    clusters = np.where(rng.uniform(size=500) < 0.6, classes, rng.integers(0, 6, 500))
    joint = np.zeros((6, 3))
    np.add.at(joint, (clusters, classes), 1 / 500)
    one, other = entropy(joint.sum(1)), entropy(joint.sum(0))
    expected = 2 * (one + other - entropy(joint.ravel())) / (one + other)
    assert normalised_mutual_information(clusters, classes) == pytest.approx(expected)
    assert 0.1 < expected < 0.9


def test_unknown_classes_are_left_out():
    clusters, classes = np.array([0, 0, 1, 1, 0]), np.array([2, 2, 0, 0, -1])
    assert normalised_mutual_information(clusters, classes) == pytest.approx(1)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ExplanationError, match="each of 2 patches, but got 3"):
        normalised_mutual_information(np.arange(2), np.arange(3))
    with pytest.raises(ExplanationError, match="all 2 are unknown"):
        normalised_mutual_information(np.arange(2), np.array([-1, -1]))


def test_a_patch_has_the_class_that_covers_most_of_it():
    rng = np.random.default_rng(2)
    names = ["a", "b", "c"]
    regions = [
        Region(shapely.Point(*rng.uniform(0, 60, 2)).buffer(rng.uniform(3, 15)), names[k % 3])
        for k in range(9)
    ]
    regions.append(Region(shapely.box(0, 0, 60, 60), "something else"))
    coords = rng.integers(0, 60, (80, 2))
    found = tissue_classes(coords, 8, regions, names)
    for (x, y), number in zip(coords, found, strict=True):
        square = shapely.box(x, y, x + 8, y + 8)
        areas = [
            shapely.union_all([r.polygon for r in regions if r.name == name])
            .intersection(square)
            .area
            for name in names
        ]
        if max(areas) == 0:
            assert number == -1
        else:
            assert areas[number] == pytest.approx(max(areas))
    assert set(found) == {-1, 0, 1, 2}


def test_of_equal_shares_the_class_on_top_is_taken():
    whole = shapely.box(0, 0, 8, 8)
    drawn = [Region(whole, "Pen"), Region(whole, "Stroma")]
    assert tissue_classes(np.array([[0, 0]]), 8, drawn, ["Stroma", "Pen"]) == [1]
