import csv

import numpy as np
import pyarrow.parquet as pq
import pytest

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import fit_conformal
from sgpmil.evaluation.uncertainty.decisions import Decision, add_decisions, decide
from sgpmil.evaluation.uncertainty.deferral import fit_deferral
from sgpmil.runs.prediction_files import (
    read_predictions,
    write_predictions,
    write_predictions_csv,
)
from tests.evaluation.uncertain_tables import model_table


@pytest.fixture
def predicted():
    table, validation = model_table(12, 3, seed=1), model_table(60, 3, seed=2)
    return table, fit_conformal(validation, 0.8), fit_deferral(validation, 0.25)


def columns_of(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_a_slide_is_decided_by_both_rules(predicted):
    table, conformal, deferral = predicted
    decisions = decide(table, conformal, deferral)
    assert tuple(d.slide_id for d in decisions) == table.slide_ids
    assert tuple(d.prediction_set for d in decisions) == conformal.sets(table).names()
    assert [d.deferred for d in decisions] == deferral.defers(table).tolist()
    assert {d.deferred for d in decisions} == {True, False}
    assert decide(table)[3] == Decision(table.slide_ids[3], None, None)
    assert decide(table)[3].columns == {}


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_files_keep_what_they_had_and_are_still_read(predicted, tmp_path, name):
    table, conformal, deferral = predicted
    path = tmp_path / name
    (write_predictions_csv if name == "p.csv" else write_predictions)(path, table)
    before, columns = read_predictions(path), columns_of(path)
    decisions = decide(table, conformal, deferral)
    add_decisions(path, decisions)
    found = columns_of(path)
    assert found.pop("prediction_set") == ["|".join(d.prediction_set) for d in decisions]
    assert found.pop("defer") == ["yes" if d.deferred else "no" for d in decisions]
    assert found == columns
    after = read_predictions(path)
    assert after.class_names == before.class_names
    np.testing.assert_array_equal(after.probs, before.probs)
    np.testing.assert_array_equal(after.std, before.std)
    assert after.labels.tolist() == before.labels.tolist()
    # Deciding anew replaces the columns.
    add_decisions(path, decide(table, None, deferral))
    add_decisions(path, decide(table, None, fit_deferral(table, 0.01)))
    assert list(columns_of(path)) == [*columns, "prediction_set", "defer"]
    assert columns_of(path)["defer"].count("yes") < len(table)


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_decisions_on_other_slides_are_refused(predicted, tmp_path, name):
    table, conformal, _ = predicted
    path = tmp_path / name
    (write_predictions_csv if name == "p.csv" else write_predictions)(path, table)
    content = path.read_bytes()
    shuffled = PredictionTable(table.predictions[::-1], table.class_names)
    for other in (shuffled, PredictionTable(table.predictions[1:], table.class_names)):
        with pytest.raises(PredictionError, match="in their order"):
            add_decisions(path, decide(other, conformal))
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == [name]
