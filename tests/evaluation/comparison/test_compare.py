import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import OrdinalTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.comparison.comparability import FoldPredictions
from sgpmil.evaluation.comparison.compare import DEFAULT_METRICS, compare
from sgpmil.evaluation.comparison.delong import delong_test
from sgpmil.evaluation.comparison.significance import holm
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.provenance import PredictionProvenance
from tests.evaluation.folds import kfold, run_of, slides_table
from tests.evaluation.tables import random_scores


def values_of(run, metric):
    return np.array([fold.metrics.slide[metric] for fold in run])


@pytest.fixture
def runs():
    folds = kfold(120, 6)
    return {
        "ours": run_of(folds, skill=3.0, seed=1),
        "abmil": run_of(folds, skill=1.0, seed=2, shuffle=True),
        "clam": run_of(folds, skill=0.5, seed=3),
    }


UNORDERED = tuple(m for m in DEFAULT_METRICS if m not in ("kappa", "mean_absolute_error"))


def test_kappa_is_compared_of_ordered_classes_alone():
    folds = kfold(60, 3)
    options = {"num_classes": 3, "kind": OrdinalTarget}
    runs = {name: run_of(folds, seed=seed, **options) for seed, name in enumerate("ab")}
    assert compare(runs).metrics == DEFAULT_METRICS


def test_other_features_under_the_names_of_the_same_slides_are_said():
    folds = kfold(60, 3)

    def run_with(digest, seed, encoder):
        found = []
        for fold in run_of(folds, seed=seed):
            slides = dict.fromkeys(fold.table.slide_ids, digest)
            provenance = PredictionProvenance(slides=slides, encoders=(encoder,))
            found.append(replace(fold, table=replace(fold.table, provenance=provenance)))
        return found

    def note(one, other):
        notes = compare({"a": run_with(*one), "b": run_with(*other)}).notes
        return next((n for n in notes if "other files of features" in n), "")

    assert note(("d", 0, "uni"), ("d", 1, "uni")) == ""
    changed = note(("d", 0, "uni"), ("e", 1, "uni"))
    assert "60 slides of 'b' (other data, or the same in another format" in changed
    assert "(uni and resnet;" in note(("d", 0, "uni"), ("e", 1, "resnet"))


def test_every_number_is_that_of_scipy(runs):
    found = compare(runs)
    assert found.runs == ("ours", "abmil", "clam")
    assert found.reference == "ours"
    assert found.folds == tuple("012345")
    assert found.metrics == UNORDERED
    assert len(found.tests) == 2 * len(UNORDERED)
    ratio = 20 / 98
    for metric in UNORDERED:
        alternative = "less" if metric in ("ace", "nll", "brier") else "greater"
        a = values_of(runs["ours"], metric)
        plain, corrected, signed = [], [], []
        for run in ("abmil", "clam"):
            b = values_of(runs[run], metric)
            test = found.test(run, metric)
            expected = stats.ttest_rel(a, b, alternative=alternative)
            assert test.paired.p_value == pytest.approx(expected.pvalue)
            t = expected.statistic / math.sqrt(1 + 6 * ratio)
            p = stats.t.cdf(t, 5) if alternative == "less" else stats.t.sf(t, 5)
            assert test.corrected.p_value == pytest.approx(p)
            assert test.paired.difference == pytest.approx((a - b).mean())
            plain.append(expected.pvalue)
            corrected.append(p)
            signed.append(test.wilcoxon.p_value)
        tests = [found.test(run, metric) for run in ("abmil", "clam")]
        assert [test.paired_holm for test in tests] == pytest.approx(holm(plain))
        assert [test.corrected_holm for test in tests] == pytest.approx(holm(corrected))
        assert [test.wilcoxon_holm for test in tests] == pytest.approx(holm(signed))
        summary = found.summary("ours", metric)
        assert summary.mean == pytest.approx(a.mean())
        assert summary.sd == pytest.approx(a.std(ddof=1))


def test_marks_are_those_of_the_corrected_test_adjusted_for_the_runs(runs):
    found = compare(runs)
    assert found.is_marked("clam", "accuracy")
    assert not found.is_marked("ours", "accuracy")
    assert found.test("ours", "accuracy") is None
    assert "corrected for overlapping training sets" in found.marking
    assert "adjusted for 2 comparisons (Holm)" in found.marking
    two = compare({"ours": runs["ours"], "clam": runs["clam"]})
    assert two.marking.endswith("across 6 folds, unadjusted")
    p = found.test("clam", "accuracy").corrected_holm
    assert not compare(runs, alpha=p).is_marked("clam", "accuracy")
    assert compare(runs, alpha=1.01 * p).is_marked("clam", "accuracy")
    worse = compare({"clam": runs["clam"], "ours": runs["ours"]})
    assert worse.test("ours", "accuracy").marking_holm > 0.9


def test_slides_in_another_order_change_nothing(runs):
    turned = [
        replace(fold, table=PredictionTable(fold.table.predictions[::-1], fold.table.target))
        for fold in runs["abmil"]
    ]
    assert compare(runs).tests == compare({**runs, "abmil": turned}).tests


def test_without_splits_the_plain_test_marks_and_says_so(runs):
    folds = kfold(120, 6)
    unknown = {
        name: run_of(folds, skill=skill, seed=seed, with_splits=False)
        for name, skill, seed in (("ours", 3.0, 1), ("clam", 0.5, 3))
    }
    found = compare(unknown)
    test = found.test("clam", "accuracy")
    assert test.corrected is None
    assert math.isnan(test.corrected_holm)
    assert test.marking is test.paired
    assert test.marking_holm == test.paired_holm
    assert "one-sided paired t-test across 6 folds" in found.marking
    assert any("too liberal" in note and "not known" in note for note in found.notes)
    assert any("could not be checked" in note for note in found.notes)
    # One run that has splits is enough to know the sizes.
    mixed = compare({"ours": unknown["ours"], "clam": runs["clam"]})
    assert mixed.test("clam", "accuracy").corrected is not None
    assert any("splits of 'ours' are not known" in note for note in mixed.notes)


def one_test_set(num_folds=4, num_test=30, **options):
    test = tuple(f"slide-{i}" for i in range(num_test))
    rest = [f"slide-{i}" for i in range(num_test, num_test + 20)]
    folds = [Fold(str(k), tuple(rest[k : k + 12]), (), test) for k in range(num_folds)]
    return run_of(folds, **options)


def test_one_test_set_for_all_folds_gives_delong_of_the_mean_probabilities():
    runs = {
        "ours": one_test_set(skill=1.5, seed=1),
        "abmil": one_test_set(skill=0.3, seed=2, shuffle=True),
    }
    found = compare(runs)
    assert found.design.test_sets == "same"
    (auc,) = found.auc_tests
    scores = {}
    for name, folds in runs.items():
        by_slide = [{p.slide_id: p.probs[1] for p in fold.table.predictions} for fold in folds]
        slides = sorted(by_slide[0])
        scores[name] = np.array([np.mean([fold[s] for fold in by_slide]) for s in slides])
    labels = np.array([int(slide.split("-")[1]) % 2 for slide in slides])
    assert auc.test.auc_a == pytest.approx(roc_auc_score(labels, scores["ours"]))
    assert auc.test.auc_b == pytest.approx(roc_auc_score(labels, scores["abmil"]))
    assert auc.test == delong_test(scores["ours"], scores["abmil"], labels == 1)
    assert (auc.run, auc.class_name, auc.p_holm) == ("abmil", "class 1", auc.test.p_value)
    assert any("tested on the same 30 slides" in note for note in found.notes)
    assert found.tests


def test_several_classes_are_each_told_from_the_rest():
    runs = {
        "a": one_test_set(skill=1.0, seed=1, num_classes=3),
        "b": one_test_set(skill=0.5, seed=2, num_classes=3),
        "c": one_test_set(skill=0.5, seed=3, num_classes=3),
    }
    tests = compare(runs).auc_tests
    assert [(t.run, t.class_name) for t in tests] == [
        (run, f"class {c}") for run in ("b", "c") for c in range(3)
    ]
    assert [t.p_holm for t in tests] == pytest.approx(holm([t.test.p_value for t in tests]))


def test_disjoint_test_sets_are_not_pooled(runs):
    assert compare(runs).auc_tests == ()


def test_a_single_fold_has_delong_alone():
    found = compare({"a": one_test_set(1, seed=1), "b": one_test_set(1, seed=2)})
    assert found.tests == ()
    assert not found.is_marked("b", "auc")
    assert len(found.auc_tests) == 1
    assert any("needs at least two" in note for note in found.notes)
    assert math.isnan(found.summary("a", "auc").sd)


def test_folds_that_not_all_runs_have_are_left_out_and_said(runs):
    part = {**runs, "abmil": [runs["abmil"][k] for k in (3, 1, 0)]}
    found = compare(part)
    assert found.folds == ("0", "1", "3")
    same = compare({name: [run[k] for k in (0, 1, 3)] for name, run in runs.items()})
    assert found.tests == same.tests
    assert any("Only the 3 folds" in note and "'2', '4', '5'" in note for note in found.notes)
    assert any("cannot be below 0.125" in note for note in found.notes)
    with pytest.raises(PredictionError, match=r"'ours': 0; 'abmil': 1\. Finish the runs"):
        compare({"ours": runs["ours"][:1], "abmil": runs["abmil"][1:2]})


def with_instances(run, seed):
    """Give each slide instances with labels, and evaluate again."""
    folds = []
    for k, fold in enumerate(run):
        rows = tuple(
            replace(p, instances=random_scores(seed=1000 * seed + 100 * k + i))
            for i, p in enumerate(fold.table.predictions)
        )
        table = PredictionTable(rows, fold.table.target)
        folds.append(FoldPredictions.of(fold.name, table, fold.split))
    return folds


def test_instance_metrics_are_compared_where_all_runs_have_them(runs):
    seeing = {name: with_instances(run, seed) for seed, (name, run) in enumerate(runs.items())}
    found = compare(seeing)
    assert found.metrics == (
        *UNORDERED,
        "attention_auc",
        "evidence_auc",
        "attention_ap",
        "evidence_ap",
    )
    a, b = (
        [fold.metrics.instance.evidence_ap for fold in seeing[name]] for name in ("ours", "abmil")
    )
    expected = stats.ttest_rel(a, b, alternative="greater").pvalue
    assert found.test("abmil", "evidence_ap").paired.p_value == pytest.approx(expected)
    part = {**seeing, "abmil": runs["abmil"]}
    assert compare(part).metrics == UNORDERED
    with pytest.raises(PredictionError, match="'evidence_ap' in every run, but 'abmil'"):
        compare(part, metrics=["evidence_ap"])


def test_metrics_can_be_chosen(runs):
    found = compare(runs, metrics=["ece", "auc", "ece"])
    assert found.metrics == ("ece", "auc")
    assert found.summary("clam", "ece").values == tuple(values_of(runs["clam"], "ece"))
    with pytest.raises(PredictionError, match="but got 'loss'"):
        compare(runs, metrics=["loss"])


def test_what_cannot_be_compared(runs):
    with pytest.raises(PredictionError, match="at least two runs to compare, but got 1"):
        compare({"ours": runs["ours"]})
    with pytest.raises(PredictionError, match=r"alpha between 0 and 1, but got 5\.0"):
        compare(runs, alpha=5.0)
    with pytest.raises(PredictionError, match="each fold of 'b' once"):
        compare({"a": runs["ours"], "b": [*runs["clam"], runs["clam"][0]]})
    other = run_of(kfold(120, 5))
    with pytest.raises(PredictionError, match="the same test slides in every run"):
        compare({"a": runs["ours"], "b": other})


def test_the_fold_names_the_slide_that_leaks():
    folds = kfold()
    with pytest.raises(PredictionError, match="10 are in its training list"):
        FoldPredictions.of("1", slides_table(folds[2].test), folds[1])
