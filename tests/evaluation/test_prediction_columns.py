from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sgpmil.errors import PredictionError
from sgpmil.evaluation.assessment import AssessmentOptions, TestedFold, assess
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.summary import evaluate, folds_frame, summarise
from sgpmil.evaluation.uncertainty.conformal import fit_conformal
from sgpmil.evaluation.uncertainty.decisions import decide, fit_deferral
from sgpmil.runs.prediction_files import write_predictions_csv

from .tables import random_scores, random_table, table_of


def test_a_frame_of_slides():
    table = table_of([[0.25, 0.75], [0.5, 0.5]], [1, None], ("normal", "tumour, grade 2"))
    frame = table.to_pandas()
    assert list(frame) == [
        *("slide_id", "case_id", "label", "predicted"),
        *("p_normal", "p_tumour, grade 2", "std_normal", "std_tumour, grade 2"),
        *("entropy", "expected_entropy", "mutual_information"),
    ]
    assert frame["label"].tolist()[0] == "tumour, grade 2"
    assert frame["label"].isna().tolist() == [False, True]
    assert frame["predicted"].tolist() == ["tumour, grade 2", "normal"]
    assert frame["p_normal"].tolist() == [0.25, 0.5]
    np.testing.assert_allclose(frame["entropy"], [p.entropy for p in table.predictions])


def test_the_frame_is_the_csv(tmp_path):
    table, validation = random_table(8, 3), random_table(60, 3, seed=5)
    first, *others = table.predictions
    known = replace(first, novel_share=0.1, novelty_p=0.2, disagreement=0.3, seen="train")
    table = PredictionTable((known, *others), table.target)
    decisions = decide(table, fit_conformal(validation, 0.8), fit_deferral(validation, 0.25))
    write_predictions_csv(tmp_path / "p.csv", table, decisions)
    of_file = pd.read_csv(tmp_path / "p.csv", dtype={"slide_id": str}, keep_default_na=False)
    of_file = of_file.replace("", np.nan)
    frame = table.to_pandas(decisions).replace("", np.nan)
    assert list(frame) == list(of_file)
    assert {"novelty_p", "disagreement", "seen", "prediction_set", "defer"} < set(frame)
    numbers = frame.select_dtypes("number").columns
    np.testing.assert_allclose(
        frame[numbers].astype(float), of_file[numbers].astype(float), atol=1e-6
    )
    for c, name in enumerate(table.class_names):
        np.testing.assert_array_equal(frame[f"p_{name}"], [p.probs[c] for p in table.predictions])
        np.testing.assert_array_equal(frame[f"std_{name}"], [p.std[c] for p in table.predictions])
    for name in ("entropy", "expected_entropy", "mutual_information", "novelty_p", "disagreement"):
        np.testing.assert_array_equal(frame[name], [getattr(p, name) for p in table.predictions])
    texts = [name for name in frame if name not in numbers]
    pd.testing.assert_frame_equal(frame[texts], of_file[texts], check_dtype=False)


def test_a_frame_of_instances():
    table = random_table(2)
    scores = random_scores(instance_labels=np.array([-1, 0, 1] * 10))
    table = PredictionTable(
        (replace(table.predictions[0], instances=scores), table.predictions[1]), table.target
    )
    frame = table.instances_to_pandas("0000")
    assert len(frame) == 30
    assert frame[["x", "y"]].to_numpy().tolist() == scores.coords.tolist()
    np.testing.assert_array_equal(frame["evidence_class 1"], scores.evidence_mean[:, 1])
    np.testing.assert_array_equal(frame["margin_class 0"], scores.score("evidence", 0))
    np.testing.assert_array_equal(frame["margin_class 0_std"], scores.score_std("evidence", 0))
    assert frame["instance_label"].isna().sum() == 10
    assert frame["instance_label"].sum() == 10
    plain = replace(scores, coords=None, patch_size=None, evidence_mean=None, evidence_std=None)
    assert list(plain.to_pandas()) == [
        *("patch", "attention_mean", "attention_std", "instance_label")
    ]
    for slide, message in (("0001", "has no scores"), ("nobody", "not among them")):
        with pytest.raises(PredictionError, match=message):
            table.instances_to_pandas(slide)
    with pytest.raises(PredictionError, match=r"2 names of classes, .* but got 1"):
        scores.to_pandas(["a"])
    with pytest.raises(PredictionError, match="'evidence_a_std' twice"):
        scores.to_pandas(["a", "a_std"])


def test_frames_of_metrics():
    folds = [evaluate(random_table(seed=k), str(k)) for k in range(3)]
    frame = folds_frame(folds)
    assert frame["fold"].tolist() == ["0", "1", "2"]
    assert frame["auc"].tolist() == [fold.slide.auc for fold in folds]
    assert "attention_auc" not in frame  # no instance has a label
    means = summarise(folds).to_pandas().set_index("metric")
    assert means.loc["auc", "mean"] == pytest.approx(frame["auc"].mean())
    assert means.loc["auc", "sd"] == pytest.approx(frame["auc"].std())
    assert means.loc["auc", "num_folds"] == 3
    values = folds[0].to_pandas().set_index("metric")["value"]
    assert values["brier"] == folds[0].slide.brier


def test_a_frame_of_an_assessment():
    table = random_table()
    found = assess([TestedFold("0", table)], options=AssessmentOptions(rounds=20))
    frame = found.to_pandas().set_index("metric")
    assert frame.loc["auc", "value"] == evaluate(table).slide.auc
    assert frame.loc["auc", "low"] <= frame.loc["auc", "value"] <= frame.loc["auc", "high"]
    assert "auc" in found.summary.to_pandas()["metric"].tolist()
