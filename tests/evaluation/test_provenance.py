import json

import numpy as np

from sgpmil.bags.dataset import BagDataset, case_digest, content_of
from sgpmil.evaluation.prediction_table import by_patient, without_patients
from sgpmil.evaluation.provenance import (
    PredictionProvenance,
    differing_slides,
    joined_provenance,
)
from sgpmil.evaluation.uncertainty.analysis import pooled_table
from sgpmil.evaluation.uncertainty.temperature import fit_temperature
from tests.evaluation.tables import random_table

ONE = PredictionProvenance(
    model="abmil",
    source="runs/a",
    folds=("0",),
    settings={"model": {"hidden_dim": 8}},
    prevalence={"normal": 0.9, "tumour": 0.1},
    seed=0,
    samples=480,
    train=("a1", "a2"),
    slides={"s": "d1"},
)


def with_provenance(provenance, **options):
    from dataclasses import replace

    return replace(random_table(**options), provenance=provenance)


def test_json_keeps_everything_and_forgives():
    assert PredictionProvenance.from_json(json.loads(json.dumps(ONE.to_json()))) == ONE
    assert "precision" not in ONE.to_json()
    assert (
        PredictionProvenance.from_json({"model": "abmil", "of a later version": 1}).model == "abmil"
    )
    assert PredictionProvenance.from_json(None) is None
    assert PredictionProvenance.from_json(["no"]) is None


def test_tables_made_of_a_table_keep_its_provenance():
    table = with_provenance(ONE)
    unlabelled = table.predictions[0]
    for made in (
        by_patient(table),
        without_patients(table),
        table.labelled(),
        table.ordered(table.class_names),
        fit_temperature(table).apply(table),
        pooled_table([table, table]),
    ):
        assert made.provenance == ONE
    assert random_table().provenance is None
    assert unlabelled.seen == ""


def test_joined_provenance_keeps_what_is_common():
    from dataclasses import replace

    other = replace(ONE, folds=("1",), train=("a2", "a3"), slides={"t": "d2"}, seed=1)
    found = joined_provenance([ONE, other])
    assert (found.folds, found.train, found.slides) == (
        ("0", "1"),
        ("a1", "a2", "a3"),
        {"s": "d1", "t": "d2"},
    )
    assert (found.model, found.seed) == ("abmil", None)
    assert joined_provenance([ONE, None]) is None
    assert joined_provenance([]) is None


def test_slides_of_one_name_and_other_features_are_named():
    from dataclasses import replace

    other = replace(ONE, slides={"s": "changed", "new": "d3"})
    assert differing_slides(ONE, other) == ("s",)
    assert differing_slides(ONE, ONE) == differing_slides(ONE, None) == ()


def test_the_line_is_short():
    assert ONE.line == "abmil of runs/a; 2 training slides"
    assert PredictionProvenance().line == ""


def test_digests_are_of_content_and_of_case_and_label():
    bags = BagDataset.from_arrays(
        [np.ones((2, 3)), np.zeros((1, 3))], [1, 0], case_ids=["anna", "bert"]
    )
    digests = bags.slide_digests()
    assert digests["bag-0"].endswith(f"-{case_digest('anna', 1)}")
    again = BagDataset.from_arrays([np.ones((2, 3))], [0], slide_ids=["copy"]).slide_digests()
    assert content_of(again["copy"]) == content_of(digests["bag-0"])
    assert content_of(digests["bag-1"]) != content_of(digests["bag-0"])
