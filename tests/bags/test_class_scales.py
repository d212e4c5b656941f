import csv
from pathlib import Path

import pytest

from sgpmil.bags.class_scales import find_scale

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data" / "public_splits"

SCALES = {
    "NC G1 G2 G3 G4 G5": "grades",
    "grade_1 grade-2 Grade3": "grades",
    "0 1+ 2+ 3+": "grades",
    "T1 T2 T2a T2b T10": "grades",
    "pT1 pT2 pT3": "grades",
    "I II III IV": "stages",
    "Stage-I Stage-IA Stage-IB Stage-IIA Stage-IV": "stages",
    "negative 3+3 3+4 4+3 3+5 4+4 5+3 4+5 5+4 5+5": "Gleason scores",
    "N PB UDH FEA ADH DCIS IC": "lesions of BRACS",
    "BT AT MT": "groups of BRACS",
    "negative ITC micro macro": "metastases of CAMELYON",
    "low intermediate high": "levels",
    "none low medium high": "levels",
    "normal mild moderate severe": "degrees",
    "benign borderline malignant": "malignancy",
}


@pytest.mark.parametrize("names", SCALES)
def test_known_scales(names):
    found = find_scale(reversed(names.split()))
    assert found.names == tuple(names.split())
    assert (found.kind, found.equals) == (SCALES[names], ())


@pytest.mark.parametrize(
    "names",
    [
        "LUAD LUSC",
        "normal tumor",
        "wt mut",
        "T1 N1",
        "N0 N1 NX",
        "cluster1 cluster2 cluster3",
        "LUAD LUSC normal",
        "G1",
    ],
)
def test_no_scale(names):
    assert find_scale(names.split()) is None


def test_labels_of_one_rank_are_named():
    assert find_scale(["0+0", "negative", "3+3"]).equals == ("0+0", "negative")
    assert find_scale(["grade 1", "Grade-1", "grade 2"]).equals == ("Grade-1", "grade 1")


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the published label tables are not here")
@pytest.mark.parametrize(
    ("table", "column", "names"),
    [
        ("panda", "label", "NC G1 G2 G3 G4 G5"),
        ("panda", "isup_grade", "0 1 2 3 4 5"),
        ("bracs", "WSI label", "N PB UDH FEA ADH DCIS IC"),
        ("bracs", "label", "BT AT MT"),
        ("camelyon16", "class", "negative micro macro"),
    ],
)
def test_published_tables(table, column, names):
    path = PUBLIC / table / "labels.csv"
    with path.open(newline="") as file:
        labels = {row[column] for row in csv.DictReader(file)}
    assert find_scale(labels).names == tuple(names.split())
