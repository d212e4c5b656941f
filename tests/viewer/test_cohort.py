import os
from dataclasses import replace

import numpy as np
import pytest

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import ExplanationError, PredictionError
from sgpmil.evaluation import InstanceScores, Prediction, PredictionTable
from sgpmil.runs.material import MaterialOptions
from sgpmil.runs.run import Run
from sgpmil.viewer.cohort import Cohort, ViewedRun, WorklistQuery

CLASSES = ("normal", "tumour")


def write_table(path, probs, labels, *, names=None, novelty=None):
    """A run of one fold, whose predictions are known."""
    names = names or [f"slide-{i}" for i in range(len(probs))]
    rows = []
    for i, (p, label) in enumerate(zip(probs, labels, strict=True)):
        one = Prediction.from_samples(names[i], f"case-{i}", label, np.array([[1 - p, p]]))
        if novelty is not None:
            one = replace(one, novelty_p=novelty[i], novel_share=1 - novelty[i])
        rows.append(one)
    fold = Fold("0", ("t",), (), tuple(names))
    run = Run.create(path, (fold,), {"model": "abmil"}, data={"folder": None, "labels": None})
    run.folds["0"].write(PredictionTable(tuple(rows), ClassTarget(CLASSES)))
    return path


@pytest.fixture
def cohort(tmp_path):
    path = write_table(
        tmp_path / "run",
        [0.5, 0.9, 0.05, 0.7, 0.99],
        [1, 1, 1, 0, None],
        novelty=[0.5, 0.001, 0.9, 0.2, 0.4],
    )
    return Cohort(ViewedRun(MaterialOptions(run=path)))


def listed(cohort, reviewed=(), **query):
    return [c.name[-1] for c in cohort.worklist(WorklistQuery(**query), frozenset(reviewed))]


@pytest.mark.parametrize(
    ("sort", "wanted"),
    [
        ("uncertainty", "03124"),
        ("error", "23014"),
        ("novelty", "13402"),
        ("name", "01234"),
        ("probability", "03124"),
    ],
)
def test_what_to_look_at_first_comes_first(cohort, sort, wanted):
    assert "".join(listed(cohort, sort=sort)) == wanted
    assert "".join(listed(cohort, sort=sort, descending=True)) == wanted[::-1]


def test_filters(cohort):
    assert set(listed(cohort, wrong=True)) == {"0", "2", "3"}
    assert set(listed(cohort, label=1)) == {"0", "1", "2"}
    assert set(listed(cohort, predicted=0, label=1)) == {"0", "2"}
    assert set(listed(cohort, unsure=True)) == {"0", "3"}
    assert set(listed(cohort, set_size=0)) == set("01234")
    assert listed(cohort, set_size=2) == []
    assert listed(cohort, search="CASE-3") == ["3"]


def test_a_slide_is_novel_as_far_as_few_training_slides_can_tell(cohort):
    # One training slide allows p-values of 1/2 at the least.
    assert set(listed(cohort, novel=True)) == {"0", "1", "3", "4"}


def test_reviewed_slides_are_told_apart(cohort):
    assert listed(cohort, reviewed={"slide-1"}) == list("03124")
    query = WorklistQuery(reviewed=True)
    assert [c.name for c in cohort.worklist(query, frozenset({"slide-1"}))] == ["slide-1"]
    rest = cohort.worklist(WorklistQuery(reviewed=False), frozenset({"slide-1"}))
    assert len(rest) == 4


def test_a_slide_is_wrong_only_where_its_label_is_known(cohort):
    assert [case.is_wrong for case in cohort.cases] == [True, False, True, True, False]


def test_differences_are_the_total_variation(tmp_path, cohort):
    other = write_table(tmp_path / "other", [0.5, 0.1, 0.05, 0.9, 0.9], [1, 1, 1, 0, None])
    beside = ViewedRun(MaterialOptions(run=other), 1, 5)
    both = Cohort(cohort.run, [beside])
    found = both.differences(beside, most=3)
    assert [(a.name, b.name, round(gap, 6)) for a, b, gap in found] == [
        ("slide-1", "slide-1", 0.8),
        ("slide-3", "slide-3", 0.2),
        ("slide-4", "slide-4", 0.09),
    ]
    assert both.counterparts(both.cases[1]) == (both.cases[6],)
    assert both.named("slide-1") is both.cases[1]


def test_runs_of_other_classes_are_not_compared(tmp_path, cohort):
    path = tmp_path / "three"
    fold = Fold("0", ("t",), (), ("slide-0",))
    row = Prediction.from_samples("slide-0", "c", 0, np.array([[0.2, 0.3, 0.5]]))
    run = Run.create(path, (fold,), {"model": "abmil"}, data={"folder": None, "labels": None})
    run.folds["0"].write(PredictionTable((row,), ClassTarget(("a", "b", "c"))))
    other = ViewedRun(MaterialOptions(run=path), 1, 5)
    with pytest.raises(ExplanationError, match="normal, tumour"):
        Cohort(cohort.run, [other]).differences(other)


def test_a_slide_that_several_folds_tested_has_a_name_for_each(tmp_path):
    folds = tuple(Fold(str(k), ("t",), (), ("a",)) for k in range(2))
    run = Run.create(tmp_path / "r", folds, {"model": "m"}, data={"folder": None, "labels": None})
    for k, p in enumerate((0.2, 0.6)):
        row = Prediction.from_samples("a", "a", 0, np.array([[1 - p, p]]))
        run.folds[str(k)].write(PredictionTable((row,), ClassTarget(CLASSES)))
    cohort = Cohort(ViewedRun(MaterialOptions(run=run.path)))
    assert [case.name for case in cohort.cases] == ["a.fold-0", "a.fold-1"]
    ((one, other, gap),) = cohort.differences(None)
    assert (one.fold, other.fold, round(gap, 6)) == ("0", "1", 0.4)
    assert (one.title, other.title) == ("r (m), fold 0", "r (m), fold 1")
    (alone,) = ViewedRun(MaterialOptions(run=run.path / "fold-1")).cases
    assert alone.title == "fold-1 (m), fold 1"


def test_runs_of_one_name_are_told_apart(cohort):
    again = Cohort(cohort.run, [ViewedRun(cohort.run.options, 1, 5)])
    assert [one.name for one in again.runs] == [cohort.run.name, f"{cohort.run.name} 2"]


def test_scores_are_never_read_from_outside_the_run(tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    names = ["../../../secret/x", "linked"]
    path = write_table(tmp_path / "run", [0.2, 0.3], [0, 1], names=names)
    from sgpmil.runs.prediction_folder import write_instance_scores

    write_instance_scores(secret / "x.h5", InstanceScores(np.ones(2), np.zeros(2)))
    attention = path / "fold-0" / "attention"
    attention.mkdir(exist_ok=True)
    os.symlink(secret / "x.h5", attention / "linked.h5")
    run = ViewedRun(MaterialOptions(run=path))
    assert run.scores(run.cases[0]) is None
    with pytest.raises(PredictionError, match="link to another place"):
        run.scores(run.cases[1])
