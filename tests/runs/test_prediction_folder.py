from dataclasses import replace

import numpy as np
import pytest

from sgpmil.runs.prediction_folder import (
    is_prediction_folder,
    read_prediction_folder,
    write_prediction_folder,
)
from tests.evaluation.tables import random_scores, random_table


def predictions(count=4):
    table = random_table(count, 3)
    scored = [replace(p, instances=random_scores(5)) for p in table.predictions]
    return scored, table.class_names


def test_round_trip(tmp_path):
    made, names = predictions()
    write_prediction_folder(tmp_path, iter(made), names)
    back = read_prediction_folder(tmp_path)
    assert back.class_names == names
    for old, new in zip(made, back.predictions, strict=True):
        np.testing.assert_array_equal(old.probs, new.probs)
        np.testing.assert_array_equal(old.instances.evidence_mean, new.instances.evidence_mean)


def test_scores_need_not_stay_in_memory(tmp_path):
    made, names = predictions()
    table = write_prediction_folder(tmp_path, made, names, keep_instances=False)
    assert all(p.instances is None for p in table.predictions)
    assert all(p.instances is not None for p in read_prediction_folder(tmp_path).predictions)


def test_a_failure_leaves_no_complete_folder(tmp_path, monkeypatch):
    made, names = predictions()
    write_prediction_folder(tmp_path, made, names)

    def broken():
        yield made[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_prediction_folder(tmp_path, broken(), names)
    assert not is_prediction_folder(tmp_path)


def test_old_scores_go(tmp_path):
    made, names = predictions(4)
    write_prediction_folder(tmp_path, made, names)
    write_prediction_folder(tmp_path, made[:2], names)
    assert len(list((tmp_path / "attention").iterdir())) == 2
