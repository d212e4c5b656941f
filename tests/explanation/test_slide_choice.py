import csv
from dataclasses import replace

import numpy as np

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import Prediction, PredictionTable
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.explanation.slide_choice import example_slides, write_slide_list
from sgpmil.runs.material import RunMaterial
from tests.evaluation.tables import random_scores


def run(tmp_path, *folds):
    made = []
    for number, rows in enumerate(folds):
        predictions = tuple(
            Prediction.from_samples(name, name, label, np.array([[1 - p, p]]))
            for name, label, p in rows
        )
        made.append(TestedFold(str(number), PredictionTable(predictions, ClassTarget(("n", "t")))))
    return RunMaterial(tmp_path, tuple(made))


def names(slides):
    return [one.prediction.slide_id for one in slides]


ROWS = [
    ("right t", 1, 0.99),
    ("right n", 0, 0.2),
    ("righter n", 0, 0.1),
    ("wrong", 1, 0.3),
    ("very wrong", 0, 0.95),
    ("torn", 0, 0.49),
]


def test_kinds_of_slides(tmp_path):
    found = example_slides(run(tmp_path, ROWS), 2)
    assert names(found.best) == ["righter n", "right t"]  # one a class
    assert names(example_slides(run(tmp_path, ROWS), 9).best) == ["righter n", "right t"]
    assert names(example_slides(run(tmp_path, ROWS), 1).best) == ["righter n", "right t"]
    assert names(found.worst) == ["very wrong", "wrong"]
    assert names(found.uncertain) == ["torn", "wrong"]


def test_a_slide_of_several_folds_is_shown_once_as_its_extreme(tmp_path):
    second = [("torn", 0, 0.02), ("wrong", 1, 0.01)]
    found = example_slides(run(tmp_path, ROWS, second), 3)
    assert names(found.worst) == ["wrong", "very wrong"]
    assert found.worst[0].fold.name == "1"
    assert names(found.uncertain).count("torn") == 1
    assert found.uncertain[0].fold.name == "0"


def test_without_labels_the_surest_are_shown(tmp_path):
    found = example_slides(run(tmp_path, [(name, None, p) for name, _, p in ROWS]), 2)
    assert names(found.best) == ["righter n", "right t"]
    assert found.worst == ()


def test_of_equally_sure_slides_the_one_with_more_patches(tmp_path):
    scores = random_scores(40, 2)
    material = run(tmp_path, [("small", 1, 0.991), ("large", 1, 0.989)])
    fold = material.folds[0]
    small, large = fold.test.predictions
    table = PredictionTable((small, replace(large, instances=scores)), ClassTarget(("n", "t")))
    found = example_slides(replace(material, folds=(replace(fold, test=table),)), 1)
    assert names(found.best) == ["large"]


def test_slides_on_which_models_disagree(tmp_path):
    found = run(tmp_path, ROWS)
    assert example_slides(found, 2).disputed == ()
    assert not found.is_ensemble
    write_slide_list(tmp_path / "one.csv", found)
    assert "disagreement" not in (tmp_path / "one.csv").read_text()

    (fold,) = found.folds
    values = dict(zip(fold.test.slide_ids, (0.0, 0.3, 0.1, 0.2, 0.05, 0.0), strict=True))
    rows = tuple(replace(p, disagreement=values[p.slide_id]) for p in fold.test.predictions)
    several = replace(found, folds=(replace(fold, test=PredictionTable(rows, found.target)),))
    assert several.is_ensemble
    assert names(example_slides(several, 2).disputed) == ["right n", "wrong"]
    write_slide_list(tmp_path / "all.csv", several)
    with (tmp_path / "all.csv").open() as file:
        listed = {row["slide_id"]: float(row["disagreement"]) for row in csv.DictReader(file)}
    assert listed == values
