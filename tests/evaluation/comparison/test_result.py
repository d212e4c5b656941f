import math
from dataclasses import replace

import pytest

from sgpmil.bags.splits import Fold
from sgpmil.evaluation.comparison.compare import compare
from tests.evaluation.folds import kfold, run_of


@pytest.fixture
def runs():
    folds = kfold(120, 6)
    return {
        "ours": run_of(folds, skill=3.0, seed=1),
        "abmil": run_of(folds, skill=1.0, seed=2, shuffle=True),
        "clam": run_of(folds, skill=0.5, seed=3),
    }


def one_test_set(num_folds=4, num_test=30, **options):
    test = tuple(f"slide-{i}" for i in range(num_test))
    rest = [f"slide-{i}" for i in range(num_test, num_test + 20)]
    folds = [Fold(str(k), tuple(rest[k : k + 12]), (), test) for k in range(num_folds)]
    return run_of(folds, **options)


def test_several_slides_of_a_patient_are_said():
    cases = {f"slide-{i}": f"case-{i // 2}" for i in range(30)}
    found = compare({name: one_test_set(seed=k, cases=cases) for k, name in enumerate(("a", "b"))})
    assert any("30 test slides come from 15 patients" in note for note in found.notes)
    other = compare({"a": one_test_set(seed=0), "b": one_test_set(seed=1)})
    assert not any("patients" in note for note in other.notes)


def test_overlap_of_the_training_sets_is_said(runs):
    share = compare(runs).design.shared_training
    assert any(f"share {100 * share:.0f} %" in note for note in compare(runs).notes)
    seeds = [Fold(str(k), ("slide-8", "slide-9"), (), ("slide-0", "slide-1")) for k in range(2)]
    found = compare({"a": run_of(seeds, seed=1), "b": run_of(seeds, seed=2)})
    assert any("nothing but the seeds" in note for note in found.notes)
    overlapping = [
        Fold("0", ("slide-8",), (), ("slide-0", "slide-1")),
        Fold("1", ("slide-9",), (), ("slide-1", "slide-2")),
    ]
    found = compare({"a": run_of(overlapping, seed=1), "b": run_of(overlapping, seed=2)})
    assert any("share slides" in note for note in found.notes)
    assert not any("% of their slides" in note for note in found.notes)


def test_other_training_slides_are_said(runs):
    folds = kfold(120, 6)
    fewer = [replace(fold, train=fold.train[:-5]) for fold in folds]
    found = compare({**runs, "abmil": run_of(fewer, seed=2)})
    assert any("'abmil' had other training slides than 'ours'" in note for note in found.notes)
    assert not any("other training slides" in note for note in compare(runs).notes)


def test_undefined_metrics_and_equal_differences_are_said():
    folds = [Fold(str(k), ("slide-99",), (), (f"slide-{2 * k}",)) for k in range(3)]
    # A test set of one class has no AUC; accuracy is 1 in one run and 0 in the other.
    found = compare({"a": run_of(folds, skill=50.0), "b": run_of(folds, skill=-50.0)})
    assert math.isnan(found.summary("a", "auc").mean)
    assert math.isnan(found.test("b", "auc").marking_holm)
    assert math.isnan(found.test("b", "accuracy").marking_holm)
    assert not found.is_marked("b", "accuracy")
    assert found.test("b", "accuracy").wilcoxon.p_value == 0.125
    text = " ".join(found.notes)
    assert "AUC against 'b': no t-test, since no fold has the metric of both systems." in text
    assert "accuracy against 'b': no t-test, since the difference is the same in every" in text


def test_folds_in_which_a_metric_is_undefined_are_said():
    folds = kfold(40, 4)
    folds[0] = replace(folds[0], test=tuple(s for s in folds[0].test if int(s[6:]) % 2))
    found = compare({"a": run_of(folds, seed=1), "b": run_of(folds, seed=2)}, metrics=["auc"])
    assert found.test("b", "auc").paired.num_folds == 3
    assert "AUC against 'b': tested in the 3 of 4 folds" in " ".join(found.notes)


def test_a_reference_that_is_worse_is_said(runs):
    turned = {name: runs[name] for name in ("clam", "ours", "abmil")}
    found = compare(turned, metrics=["auc", "nll"])
    assert not found.is_marked("ours", "auc")
    assert found.is_behind("ours", "auc")
    assert found.is_behind("ours", "nll")
    p_values = {t.metric: t.reverse_holm for t in found.tests if t.run == "ours"}
    shown = "; ".join(
        f"{name} (p {f'= {p:.2g}' if p >= 0.001 else '< 0.001'})"
        for name, p in (("AUC", p_values["auc"]), ("NLL", p_values["nll"]))
    )
    verdict = (
        f"ours is better than clam in {shown}: 2 of 2 metrics, not corrected for their number."
    )
    assert verdict in found.verdicts
    # The same test as of the runs in the other order, adjusted for as many runs.
    alone = compare({name: runs[name] for name in ("clam", "ours")}, metrics=["auc"])
    other = compare({name: runs[name] for name in ("ours", "clam")}, metrics=["auc"])
    p = other.test("clam", "auc").corrected.p_value
    assert alone.test("ours", "auc").reverse_holm == pytest.approx(p)
    assert other.test("clam", "auc").reverse_holm == pytest.approx(1 - p)


def test_neither_direction_is_said_where_runs_are_alike(runs):
    found = compare({"a": runs["ours"], "b": runs["ours"]})
    assert not any(found.is_behind("b", name) or found.is_marked("b", name) for name in ("auc",))
    (said,) = found.verdicts
    assert said == "a is neither significantly better nor significantly worse than b in any metric."


def test_delongs_test_names_the_better_one_in_either_direction():
    worse, better = one_test_set(skill=0.2, seed=1), one_test_set(skill=4.0, seed=2)
    (test, *_) = compare({"a": worse, "b": better}).auc_tests
    (other, *_) = compare({"b": better, "a": worse}).auc_tests
    assert test.reverse_holm == pytest.approx(other.p_holm)
    said = f"b is better than a in the AUC of '{test.class_name}' by DeLong's test."
    assert said in compare({"a": worse, "b": better}).verdicts
    assert said in compare({"b": better, "a": worse}).verdicts
