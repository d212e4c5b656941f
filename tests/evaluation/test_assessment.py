import csv
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import confusion_matrix, roc_auc_score

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError, SettingsError
from sgpmil.evaluation.assessment import AssessmentOptions, TestedFold, assess, write_assessment
from sgpmil.evaluation.bootstrap import bootstrap_intervals
from sgpmil.evaluation.localisation.instance_evaluation import InstanceOptions
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable, by_patient
from sgpmil.evaluation.summary import evaluate

QUICK = AssessmentOptions(rounds=50)


def table(prefix, num=24, *, seed=0, slides_of_patient=2, instances=False):
    """Slides of which most are told apart; a patient has two, of the same label."""
    rng = np.random.default_rng(seed)
    predictions = []
    for number in range(num):
        patient = number // slides_of_patient
        label = patient % 2
        logits = rng.normal(size=(8, 2)) * 0.4 + (1.2 * label + rng.normal() - 0.6) * np.array(
            [-1, 1]
        )
        samples = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        scores = None
        if instances:
            truth = (rng.random(30) < 0.3 * label).astype(np.int64)
            attention = (rng.random(30) + 0.5 * truth).astype(np.float64)
            scores = InstanceScores(attention, np.full(30, 0.1), instance_labels=truth, coords=None)
        predictions.append(
            Prediction.from_samples(
                f"{prefix}{number}", f"{prefix}-patient{patient}", label, samples, scores
            )
        )
    return PredictionTable(tuple(predictions), ClassTarget(("normal", "tumour")))


@pytest.fixture
def folds():
    return (
        TestedFold("a", table("x", instances=True), table("v", seed=1, instances=True)),
        TestedFold("b", table("y", seed=2, instances=True), table("w", seed=3, instances=True)),
    )


def test_every_part_is_what_its_own_function_gives(folds):
    found = assess(folds, options=QUICK)
    assert found.folds == tuple(evaluate(fold.test, fold.name) for fold in folds)
    labels = np.concatenate([fold.test.labels for fold in folds])
    probs = np.concatenate([fold.test.probs for fold in folds])
    assert found.confusion.tolist() == confusion_matrix(labels, probs.argmax(1)).tolist()
    for fold, intervals in zip(folds, found.intervals, strict=True):
        # As text, so that an undefined value equals itself.
        assert repr(intervals) == repr(bootstrap_intervals(fold.test, 50))
        assert intervals.num_patients == 12
        auc = roc_auc_score(fold.test.labels, fold.test.probs[:, 1])
        assert intervals.of("auc").low <= auc <= intervals.of("auc").high
    for fold, parts in zip(found.folds, found.brier, strict=True):
        assert parts.score == pytest.approx(fold.slide.brier)
    rows = {(row.fold, row.score, row.scope): row for row in found.instances.localisation}
    first = found.folds[0].instance
    assert rows["a", "attention", "per_slide"].auc == pytest.approx(first.attention_auc)
    assert rows["b", "uniform", "per_slide"].auc == 0.5
    assert found.summary[0].mean == pytest.approx(
        np.mean([fold.slide.balanced_accuracy for fold in found.folds])
    )


def test_patients_are_measured_instead_of_slides(folds):
    found = assess(folds, options=replace(QUICK, patients=True))
    assert [fold.slide.num_slides for fold in found.folds] == [12, 12]
    assert found.folds[0].slide == evaluate(by_patient(folds[0].test)).slide
    assert found.confusion.sum() == 24
    # Instances stay those of the slides.
    assert found.instances.localisation == assess(folds, options=QUICK).instances.localisation


def test_folds_with_one_test_set_are_said(folds):
    same = (folds[0], replace(folds[1], test=folds[0].test))
    assert any("48 times on 24 slides" in note for note in assess(same, options=QUICK).notes)
    assert not any("times on" in note for note in assess(folds, options=QUICK).notes)


def test_slides_without_a_label_are_left_out_and_counted(folds):
    slides = list(folds[0].test.predictions)
    slides[:3] = [replace(slide, label=None) for slide in slides[:3]]
    found = assess(
        [replace(folds[0], test=PredictionTable(tuple(slides), ClassTarget(("normal", "tumour"))))]
    )
    assert found.folds[0].slide.num_slides == 21
    assert "3 of 24 slides have no label and are left out." in found.notes
    assert not any("no label" in note for note in assess(folds, options=QUICK).notes)


def test_a_placeholder_for_a_patient_is_said_and_slides_are_resampled():
    slides = tuple(replace(p, case_id="patient_1") for p in table("x").predictions)
    found = assess(
        [TestedFold("0", PredictionTable(slides, ClassTarget(("normal", "tumour"))))], options=QUICK
    )
    assert found.intervals[0].num_patients == 24
    assert any("placeholder" in note for note in found.notes)


def test_a_single_slide_has_no_interval_and_no_validation_no_temperature():
    one = PredictionTable(table("x").predictions[:1], ClassTarget(("normal", "tumour")))
    found = assess([TestedFold("0", one)], options=QUICK)
    assert found.intervals == (None,)
    assert found.uncertainty.calibration_rows == ()
    assert found.instances is None


def test_impossible_requests(folds):
    with pytest.raises(PredictionError, match="at least one finished fold"):
        assess([])
    with pytest.raises(SettingsError, match="rounds >= 0, but got -1"):
        assess(folds, options=AssessmentOptions(rounds=-1))
    assert assess(folds, options=AssessmentOptions(rounds=0)).intervals == ()
    with pytest.raises(SettingsError, match=r"between 0 and 1, .* but got 90"):
        assess(folds, options=AssessmentOptions(coverage=90.0))
    asked = AssessmentOptions(instances=InstanceOptions(threshold="best_on_test"))
    with pytest.raises(SettingsError, match="instance labels for `best_on_test=True`"):
        assess([TestedFold("0", table("x"))], options=asked)


# Tables on disk


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_tables_hold_what_was_measured(folds, tmp_path):
    found = assess(folds, options=QUICK)
    written = write_assessment(tmp_path / "deep" / "out", found)
    assert all(path.is_file() for path in written)
    out = tmp_path / "deep" / "out"
    stored = pd.read_parquet(out / "metrics.parquet")
    assert stored["nll"].tolist() == [fold.slide.nll for fold in found.folds]
    metrics = {(r["fold"], r["metric"]): r for r in read_csv(out / "metrics.csv")}
    auc = metrics["b", "auc"]
    assert float(auc["value"]) == found.folds[1].slide.auc
    assert float(auc["low"]) == found.intervals[1].of("auc").low
    confusion = read_csv(out / "confusion.csv")
    assert [[int(r["normal"]), int(r["tumour"])] for r in confusion] == found.confusion.tolist()
    parts = read_csv(out / "brier.csv")[0]
    assert float(parts["resolution"]) == found.brier[0].resolution
    rows = read_csv(out / "instances.csv")
    assert {r["score"] for r in rows} == {"attention", "uniform", "random"}
    assert len(rows) == len(found.instances.localisation)
    measures = read_csv(out / "uncertainty.csv")
    assert len(measures) == len(found.uncertainty.measure_rows) + len(
        found.uncertainty.calibration_rows
    )
    assert "nan" not in (out / "metrics.csv").read_text()
    assert not (out / "lesions.csv").exists()


def test_tables_of_an_earlier_assessment_do_not_stay(folds, tmp_path):
    write_assessment(tmp_path, assess(folds, options=QUICK))
    assert (tmp_path / "instances.csv").exists()
    write_assessment(tmp_path, assess([TestedFold("0", table("x"))], options=QUICK))
    assert not (tmp_path / "instances.csv").exists()
