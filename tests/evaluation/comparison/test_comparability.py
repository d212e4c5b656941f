import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sgpmil.bags.labels import read_labels
from sgpmil.bags.split_files import read_splits
from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.comparison.comparability import (
    FoldPredictions,
    check_own_test_slides,
    check_same_test_sets,
    fold_design,
)
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.summary import evaluate
from tests.evaluation.folds import kfold, run_of, slides_table
from tests.evaluation.tables import random_scores, random_table

PUBLIC = Path(__file__).resolve().parents[4] / "shared" / "data" / "public_splits"
FOLD = Fold("3", train=("slide-0", "slide-1"), val=("slide-2",), test=("slide-4", "slide-5"))


def test_own_test_slides_pass_in_any_order():
    check_own_test_slides(FOLD, slides_table(["slide-5", "slide-4"]))


def test_slides_that_were_learned_from_are_refused():
    table = slides_table(["slide-4", "slide-5", "slide-1", "slide-0", "slide-2"])
    with pytest.raises(PredictionError) as error:
        check_own_test_slides(FOLD, table)
    assert "fold 3" in str(error.value)
    assert "of the 5 slides predicted 2 are in its training list" in str(error.value)
    assert "1 are in its validation list" in str(error.value)
    assert "'slide-0'" in str(error.value)
    with pytest.raises(PredictionError, match="1 are in its validation list, such as 'slide-2'"):
        check_own_test_slides(FOLD, slides_table(["slide-4", "slide-5", "slide-2"]))


def test_missing_and_foreign_slides_are_refused():
    with pytest.raises(PredictionError, match=r"2 test slides, but 1 are missing \('slide-4'\)\."):
        check_own_test_slides(FOLD, slides_table(["slide-5"]))
    with pytest.raises(PredictionError, match=r"but 1 are not in its test list \('slide-9'\)"):
        check_own_test_slides(FOLD, slides_table(["slide-4", "slide-5", "slide-9"]))
    with pytest.raises(PredictionError, match="fold 3"):
        FoldPredictions.of("3", slides_table(["slide-5"]), FOLD)


def public_folds(name):
    if not (PUBLIC / name).is_dir():
        pytest.skip("the published splits are not here")
    labels = read_labels(PUBLIC / name / "labels.csv")
    return labels, read_splits(PUBLIC / name, labels)


def predictions_of(slides):
    row = np.full((1, 6), 1 / 6)
    return PredictionTable(
        tuple(Prediction.from_samples(slide, slide, 0, row) for slide in slides),
        ClassTarget(tuple("012345")),
    )


def test_one_test_set_for_the_models_of_all_folds_is_refused():
    """The published leak, on the published splits."""
    _, folds = public_folds("panda")
    for fold in folds:
        check_own_test_slides(fold, predictions_of(fold.test))
    first, second = folds[:2]
    assert len(first.test) == 1592
    learned = len(set(first.test) & set(second.train))
    assert 1253 <= learned <= 1273
    expected = f"of the 1,592 slides predicted {learned} are in its training list"
    with pytest.raises(PredictionError, match=expected):
        check_own_test_slides(second, predictions_of(first.test))


def test_evaluates_and_lets_go_of_the_instances():
    table = random_table(10)
    table = PredictionTable(
        tuple(replace(p, instances=random_scores(seed=i)) for i, p in enumerate(table.predictions)),
        table.target,
    )
    fold = FoldPredictions.of("a", table)
    assert fold.name == "a"
    assert fold.metrics == evaluate(table, "a")
    assert fold.metrics.instance is not None
    assert all(prediction.instances is None for prediction in fold.table.predictions)
    np.testing.assert_array_equal(fold.table.probs, table.probs)


def test_the_same_slides_in_another_order_pass():
    folds = kfold()
    check_same_test_sets({"a": run_of(folds), "b": run_of(folds, seed=1, shuffle=True)})


def test_differing_test_slides_name_fold_and_slide():
    folds = kfold()
    other = [*folds[:2], replace(folds[2], test=(*folds[2].test[1:], "slide-99")), folds[3]]
    with pytest.raises(PredictionError) as error:
        check_same_test_sets(
            {"a": run_of(folds), "b": run_of(folds), "c": run_of(other, with_splits=False)}
        )
    assert "in fold 2 'slide-20' is in 'a' and not in 'c' (in all 2 slides)" in str(error.value)
    more = [replace(folds[0], test=(*folds[0].test, "slide-990")), *folds[1:]]
    with pytest.raises(PredictionError, match="'slide-990' is in 'b' and not in 'a'"):
        check_same_test_sets({"a": run_of(folds), "b": run_of(more)})


def relabelled(fold, slide_id, label):
    rows = tuple(
        replace(p, label=label) if p.slide_id == slide_id else p for p in fold.table.predictions
    )
    return FoldPredictions.of(fold.name, PredictionTable(rows, fold.table.target))


@pytest.mark.parametrize("label", [1, None])
def test_differing_labels_name_fold_and_slide(label):
    ours, theirs = run_of(kfold()), run_of(kfold(), seed=1)
    theirs[1] = relabelled(theirs[1], "slide-12", label)
    with pytest.raises(
        PredictionError, match=f"in fold 1 'slide-12' has label 0 in 'a' and {label} in 'b'"
    ):
        check_same_test_sets({"a": ours, "b": theirs})


def test_classes_must_be_the_same_unless_unnamed():
    folds = kfold()
    ours = run_of(folds, names=("normal", "tumour"))
    check_same_test_sets({"a": ours, "b": run_of(folds, names=("0", "1"))})
    for names in (("tumour", "normal"), ("LUAD", "LUSC")):
        with pytest.raises(
            PredictionError, match=f"normal, tumour in 'a' and the classes {names[0]}"
        ):
            check_same_test_sets({"a": ours, "b": run_of(folds, names=names)})
    with pytest.raises(PredictionError, match="Compare runs of one task"):
        check_same_test_sets({"a": ours, "b": run_of(folds, num_classes=3)})


def test_design_of_cross_validation():
    design = fold_design(run_of(kfold(40, 4)))
    assert design.test_sets == "disjoint"
    assert design.num_test == (10, 10, 10, 10)
    assert design.num_train == (28, 28, 28, 28)
    folds = kfold(40, 4)
    shares = [
        len(set(a.train) & set(b.train)) / 28 for i, a in enumerate(folds) for b in folds[i + 1 :]
    ]
    assert design.shared_training == pytest.approx(np.mean(shares))


def test_design_of_one_test_set_and_of_overlapping_ones():
    test = tuple(f"slide-{i}" for i in range(4))
    trains = [tuple(f"slide-{i}" for i in range(4 + k, 10 + k)) for k in range(3)]
    same = run_of([Fold(str(k), train, (), test) for k, train in enumerate(trains)])
    assert fold_design(same).test_sets == "same"
    assert fold_design(same).shared_training == pytest.approx((5 + 5 + 4) / 18)
    tests = [("slide-0", "slide-1"), ("slide-1", "slide-2"), ("slide-2", "slide-3")]
    overlapping = run_of([Fold(str(k), ("slide-9",), (), t) for k, t in enumerate(tests)])
    assert fold_design(overlapping).test_sets == "overlapping"
    assert fold_design(overlapping).shared_training == 1.0


def test_design_of_one_fold_and_without_splits():
    alone = fold_design(run_of(kfold()[:1]))
    assert (alone.test_sets, alone.num_train) == ("one", (28,))
    assert math.isnan(alone.shared_training)
    unknown = fold_design(run_of(kfold(), with_splits=False))
    assert (unknown.test_sets, unknown.num_train) == ("disjoint", ())
    assert math.isnan(unknown.shared_training)
    partly = [*run_of(kfold())[:2], *run_of(kfold(), with_splits=False)[2:]]
    assert fold_design(partly).num_train == ()


def test_camelyon16_has_one_test_set_and_nsclc_overlapping_ones():
    for name, expected in (("camelyon16", "same"), ("tcga_nsclc", "overlapping")):
        _, folds = public_folds(name)
        runs = [FoldPredictions.of(f.name, predictions_of(f.test), f) for f in folds]
        design = fold_design(runs)
        assert design.test_sets == expected
        assert 0.5 < design.shared_training < 1
