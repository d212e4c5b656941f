from dataclasses import replace

import numpy as np
import pytest

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import PredictionTable
from sgpmil.evaluation.assessment import AssessmentOptions, TestedFold, assess
from sgpmil.evaluation.prediction import entropy
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.explanation.confidence import has_posterior
from sgpmil.models.process_use import ProcessUse
from sgpmil.report.pages.checks import run_checks
from sgpmil.runs.material import run_facts
from sgpmil.runs.run import Run

from .reported_run import CLASSES, material


def check(found, title, **facts):
    known = replace(run_facts(found), **facts)
    labelled = [fold for fold in found.folds if len(fold.test.labelled())]
    assessment = None
    if labelled:
        tested = [TestedFold(fold.name, fold.test, fold.validation) for fold in labelled]
        assessment = assess(tested, None, AssessmentOptions(rounds=0))
    checks = {one.title: one for one in run_checks(found, known, assessment).checks}
    return checks[title]


def changed(found, change, fold=0):
    """Change every prediction of a fold's test slides."""
    own = found.folds[fold]
    rows = tuple(change(number, p) for number, p in enumerate(own.test.predictions))
    folds = list(found.folds)
    folds[fold] = replace(own, test=PredictionTable(rows, ClassTarget(CLASSES)))
    return replace(found, folds=tuple(folds))


@pytest.fixture
def found(tmp_path):
    return material(path=tmp_path)


def splits(found, leak=()):
    tests = [fold.test.slide_ids for fold in found.folds]
    return (
        Fold("0", (*tests[1], *leak), found.folds[0].validation.slide_ids, tests[0]),
        Fold("1", tests[0], found.folds[1].validation.slide_ids, tests[1]),
    )


def test_a_sound_run_passes(found):
    known = replace(run_facts(found), splits=splits(found), num_patients=20)
    tested = [TestedFold(f.name, f.test, f.validation) for f in found.folds]
    checks = run_checks(found, known, assess(tested, None, AssessmentOptions(rounds=0))).checks
    marks = {one.title: one.mark for one in checks}
    for title in (
        *("Folds", "Patients in training and test", "Test sets", "Names of slides", "Labels"),
        *("Perfect ranking", "Validation slides", "Attention"),
    ):
        assert marks[title] == "pass", title
    order = [one.mark for one in checks]
    assert order == sorted(order, key=("warning", "note", "pass").index)


def test_unfinished_folds(found):
    said = check(replace(found, unfinished=("2", "3")), "Folds")
    assert said.mark == "warning"
    assert "2 folds not done ('2', '3')" in said.text


def test_a_patient_in_training_and_test(found):
    title = "Patients in training and test"
    # Another slide of the patient of 'f0 s03', known by the labels alone.
    patients = {**run_facts(found).patients, "elsewhere": "case f0 s03"}
    said = check(found, title, splits=splits(found, ["elsewhere"]), patients=patients)
    assert said.mark == "warning"
    assert "1 patient with slides in training or validation and in test" in said.text
    assert "'case f0 s03'" in said.text
    unknown = check(found, title, splits=splits(found, ["elsewhere"]))
    assert unknown.mark == "note"
    assert "the patients of 1 training slide are not known" in unknown.text
    assert check(found, title).mark == "note"  # no splits: nothing is known


def test_a_fold_that_is_not_done_leaks_nothing(found):
    patients = {**run_facts(found).patients, "x": "case f0 s03"}
    one = replace(found, folds=found.folds[1:])
    said = check(
        one,
        "Patients in training and test",
        splits=splits(found, ["x"]),
        patients=patients,
        num_patients=11,
    )
    assert said.mark == "pass"


def test_slides_in_several_test_sets(found):
    twice = replace(found, folds=(found.folds[0], replace(found.folds[0], name="1")))
    said = check(twice, "Test sets")
    assert said.mark == "note"
    assert "12 slides in the test sets of several folds" in said.text


def test_names_that_differ_in_capitals_or_suffix(found):
    names = {0: "F1 S04", 1: "f1 s05.svs"}
    alike = changed(found, lambda i, p: replace(p, slide_id=names.get(i, p.slide_id)))
    said = check(alike, "Names of slides")
    assert said.mark == "warning"
    assert "2 names" in said.text


def test_rare_classes_and_missing_labels(found):
    rare = changed(found, lambda i, p: replace(p, label=0))
    said = check(rare, "Labels")
    assert said.mark == "warning"
    assert "Few slides of 'tumour (6)', of 24" in said.text
    missing = changed(found, lambda i, p: replace(p, label=None if i < 2 else p.label))
    said = check(missing, "Labels")
    assert said.mark == "note"
    assert "2 slides without a label" in said.text
    none = material(path=found.path, num_folds=1)
    none = changed(none, lambda i, p: replace(p, label=None))
    assert check(none, "Labels").text == "No slide has a label: nothing can be measured."


def test_perfect_numbers_are_suspicious(found):
    def right(i, p):
        probs = np.array([0.1, 0.9]) if p.label else np.array([0.9, 0.1])
        return replace(p, probs=probs)

    both = changed(changed(found, right), right, fold=1)
    said = check(both, "Perfect ranking")
    assert said.mark == "warning"
    assert "AUC is 1.000 in every fold" in said.text
    one = check(changed(found, right), "Perfect ranking")
    assert (one.mark, one.text) == ("note", "AUC is 1.000 in 1 of 2 folds.")


def test_miscalibration(found):
    def sure(i, p):
        return replace(p, probs=np.array([0.001, 0.999]))

    said = check(changed(changed(found, sure), sure, fold=1), "Calibration")
    assert said.mark == "warning"
    assert "differ by 0.50 (ECE, mean of 2 folds, 24 slides)" in said.text


def test_the_ece_of_the_check_is_that_of_the_tables(found):
    # Folds that err in opposite directions: pooled, their errors would cancel.
    def sure(i, p):
        return replace(p, label=1, probs=np.array([0.4, 0.6]))

    def unsure(i, p):
        return replace(p, label=int(i < 2), probs=np.array([0.4, 0.6]))

    mixed = changed(changed(found, sure), unsure, fold=1)
    tested = [TestedFold(fold.name, fold.test, fold.validation) for fold in mixed.folds]
    summary = assess(tested, None, AssessmentOptions(rounds=0)).summary
    in_table = next(metric for metric in summary if metric.name == "ece").mean
    assert in_table == pytest.approx((0.4 + 0.6 - 2 / 12) / 2)
    assert f"differ by {in_table:.2f} (ECE, mean of 2 folds" in check(mixed, "Calibration").text


def test_calibration_is_not_passed_where_chance_is_as_large(found):
    def half(i, p):
        probs = np.array([0.3, 0.7]) if p.label else np.array([0.7, 0.3])
        return replace(p, probs=probs[::-1] if i % 3 == 0 else probs)

    said = check(changed(changed(found, half), half, fold=1), "Calibration")
    assert said.mark == "note"
    assert "a miscalibration is not shown" in said.text


def test_few_errors_are_counted_and_no_more(found):
    said = check(found, "Errors")
    assert said.mark == "note"
    assert said.text.startswith("2 of 24 predictions are wrong. That is too few")


def test_errors_that_are_less_certain(found):
    def change(certain, uncertain):
        def predict(i, p):
            chance = uncertain if i < 4 else certain
            probs = np.array([1 - chance, chance]) if p.label else np.array([chance, 1 - chance])
            probs = probs[::-1] if i < 4 else probs
            return replace(p, probs=probs, entropy=float(entropy(probs)))

        return changed(changed(found, predict), predict, fold=1)

    said = check(change(0.95, 0.6), "Errors")
    assert said.mark == "pass"
    assert "8 of 24 predictions are wrong" in said.text
    assert "chance of 1.00 (95% interval 0.63–1.00" in said.text
    surer = check(change(0.6, 0.95), "Errors")
    assert surer.mark == "warning"
    assert "surer of its errors" in surer.text


def test_an_idle_process_is_a_warning(found):
    title = "Uncertainty of the model"
    idle = ProcessUse(0.001, 0.0006, 0.975, 3000)
    used = ProcessUse(1.0, 0.36, 0.69, 3000)
    known = run_facts(found)

    def said(posteriors):
        checks = run_checks(found, known, None, posteriors).checks
        return next(one for one in checks if one.title == title)

    assert said({"0": used, "1": used}).mark == "pass"
    assert "6,000 patches" in said({"0": used, "1": used}).text
    both = said({"0": idle, "1": idle})
    assert both.mark == "warning"
    assert "idle in every fold" in both.text
    one = said({"0": used, "1": idle})
    assert one.mark == "warning"
    assert "idle in '1'" in one.text
    assert said({}).mark == "note"  # nothing is passed that was not measured


def test_patients_that_are_only_names(found):
    title = "Patients in training and test"
    said = check(found, title, splits=splits(found))
    assert said.mark == "note"
    assert "a different patient for each of 24 slides" in said.text
    assert check(found, title, splits=splits(found), num_patients=20).mark == "pass"


def test_slides_that_the_model_was_trained_on(found):
    trained = changed(found, lambda i, p: replace(p, seen="train"))
    said = check(trained, "Patients in training and test")
    assert said.mark == "warning"
    assert "trained on 12 slides of 24" in said.text


def test_an_ensemble_is_named(found):
    several = changed(found, lambda i, p: replace(p, disagreement=0.01 * i))
    said = check(several, "Ensemble")
    assert said.mark == "note"
    assert (
        "12 slides together. Their disagreement is 0.055 nats in the median and 0.110 at most"
        in (said.text)
    )
    with pytest.raises(KeyError):
        check(found, "Ensemble")


def test_validation_slides(found):
    without = replace(found, folds=(replace(found.folds[0], validation=None), found.folds[1]))
    said = check(without, "Validation slides")
    assert said.mark == "warning"
    assert "1 fold without validation slides ('0')" in said.text
    same = replace(found.folds[0], validation=found.folds[0].test)
    said = check(replace(found, folds=(same, found.folds[1])), "Validation slides")
    assert said.mark == "warning"
    assert "12 test slides used for validation" in said.text


def test_a_deterministic_model_says_so(tmp_path):
    plain = material(path=tmp_path, posterior=False)
    assert not has_posterior(plain)
    said = check(plain, "Uncertainty of the model")
    assert said.mark == "note"
    assert "deterministic" in said.text
    unknown = changed(plain, lambda i, p: replace(p, std=np.full(2, np.nan)))
    assert not has_posterior(unknown)


def test_flat_attention_and_missing_places(found):
    def flat(i, p):
        return replace(
            p, instances=replace(p.instances, attention_mean=np.full(16, 1 / 16), coords=None)
        )

    both = changed(changed(found, flat), flat, fold=1)
    assert "the model does not choose" in check(both, "Attention").text
    assert "24 slides without coordinates" in check(both, "Coordinates").text
    none = changed(found, lambda i, p: replace(p, instances=None))
    assert "12 slides without coordinates or scores" in check(none, "Coordinates").text


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite(found, value):
    def broken(i, p):
        attention = p.instances.attention_mean.copy()
        attention[i] = value
        scores = replace(p.instances, attention_mean=attention)
        return replace(p, instances=scores if i < 3 else p.instances)

    said = check(changed(found, broken), "Scores of patches")
    assert said.mark == "warning"
    assert "3 slides with patches whose scores are not finite" in said.text
    with pytest.raises(KeyError):
        check(changed(found, broken), "Attention")  # nothing is passed that is broken
    with pytest.raises(KeyError):
        check(found, "Scores of patches")


def test_embeddings_and_encoder(found, run_material):
    said = check(replace(found, bags_missing="They are gone."), "Embeddings")
    assert (said.mark, said.text) == ("note", "They are gone.")
    assert check(run_material, "Embeddings").mark == "pass"
    fewer = replace(run_material, bags=run_material.bags.subset(run_material.bags.slide_ids[:-3]))
    assert "3 slides of 24 no longer have embeddings" in check(fewer, "Embeddings").text
    assert check(found, "Patch encoder", encoders=("uni_v1",)).mark == "pass"
    unknown = check(found, "Patch encoder")
    assert unknown.mark == "note"
    assert "The encoder of the patches is unknown" in unknown.text
    assert check(found, "Patch encoder", encoders=("efficientnet-lite0",)).mark == "note"
    assert check(found, "Patch encoder", encoders=("uni", "conch")).mark == "warning"


def test_phantoms_are_told_from_slides(run_material, tmp_path):
    assert not run_facts(run_material).is_synthetic
    folder = tmp_path / "slides"
    folder.mkdir()
    (tmp_path / "phantoms.json").write_text("{}")
    sources = replace(run_material.sources, files={"f0 s00": folder / "f0 s00.tif"})
    made = replace(run_material, sources=sources)
    assert run_facts(made).is_synthetic
    assert check(made, "Synthetic slides").mark == "warning"
    run = run_material.run
    labelled = Run(run.path, {**run.description, "data": {"labels": str(tmp_path / "labels.csv")}})
    assert run_facts(replace(run_material, run=labelled)).is_synthetic
    assert "23 slides of 24 have none" in check(made, "Slide images").text


def test_facts_of_the_run(run_material):
    facts = run_facts(run_material)
    assert (facts.num_slides, facts.num_patients, facts.class_counts) == (24, 24, (12, 12))
    assert facts.bag_sizes == (16,) * 24
    assert [len(fold.test) for fold in facts.splits] == [12, 12]
    assert facts.patients["f0 s03"] == "case f0 s03"
    assert facts.patients["v1 05"] == "case v1 05"


def test_slides_unlike_those_of_training_are_counted_against_chance(found):
    title = "Slides unlike those of training"
    assert check(found, title).mark == "note"  # nothing was compared

    def compared(num_unlike):
        def change(i, p):
            p_value = 0.005 if i < num_unlike else 0.5
            return replace(p, novelty_p=p_value, novel_share=1 - p_value)

        return changed(changed(found, change), lambda i, p: replace(p, novelty_p=0.5), fold=1)

    said = check(compared(0), title)
    assert (said.mark, said.text[:25]) == ("pass", "0 of 24 slides are unlike")
    said = check(compared(1), title)  # 21 of 100 times by chance
    assert (said.mark, said.text[:24]) == ("pass", "1 of 24 slides is unlike")
    said = check(compared(3), title)
    assert said.mark == "warning"
    assert "by chance it would be about 0.2. Another scanner, stain or encoder?" in said.text


def test_features_that_are_not_like_those_of_training_are_a_warning(found):
    fold = found.folds[0]
    origin = PredictionProvenance(other_features="instances at 40×, where training had 20×")
    fold = replace(fold, test=replace(fold.test, provenance=origin))
    said = check(replace(found, folds=(fold, *found.folds[1:])), "Embeddings of training")
    assert said.mark == "warning"
    assert "instances at 40×, where training had 20×. Predictions may not hold" in said.text
