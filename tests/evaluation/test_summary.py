import math
import statistics
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sgpmil.errors import PredictionError
from sgpmil.evaluation.metrics import (
    INSTANCE_METRICS,
    SLIDE_METRICS,
    instance_metrics,
    slide_metrics,
)
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.seen_slides import SeenSlidesWarning
from sgpmil.evaluation.summary import evaluate, measure_fold, summarise, write_metrics

from .tables import random_scores, random_table, table_of


def with_instances(table):
    predictions = tuple(
        replace(p, instances=random_scores(seed=i)) for i, p in enumerate(table.predictions)
    )
    return PredictionTable(predictions, table.target)


def test_evaluate_is_the_metrics_of_the_table():
    table = with_instances(random_table())
    fold = evaluate(table, "fold-0")
    assert fold.fold == "fold-0"
    assert fold.slide == slide_metrics(table)
    assert fold.instance == instance_metrics(table)
    assert evaluate(random_table()).instance is None


def test_summary_against_the_standard_library():
    folds = [evaluate(with_instances(random_table(seed=k)), str(k)) for k in range(4)]
    summaries = {summary.name: summary for summary in summarise(folds)}
    assert "num_slides" not in summaries
    aucs = [fold.slide.auc for fold in folds]
    assert summaries["auc"].values == tuple(aucs)
    assert summaries["auc"].mean == pytest.approx(statistics.mean(aucs))
    assert summaries["auc"].sd == pytest.approx(statistics.stdev(aucs))
    evidence = [fold.instance.evidence_auc for fold in folds]
    assert summaries["evidence_auc"].sd == pytest.approx(statistics.stdev(evidence))
    assert summaries["evidence_auc"].num_undefined == 0


def test_undefined_folds_are_skipped_and_counted():
    undefined = evaluate(table_of([[0.9, 0.1], [0.7, 0.3]], [0, 0]))
    folds = [evaluate(random_table(seed=1)), undefined, evaluate(random_table(seed=2))]
    auc = next(summary for summary in summarise(folds) if summary.name == "auc")
    assert auc.num_undefined == 1
    assert math.isnan(auc.values[1])
    assert auc.mean == pytest.approx((auc.values[0] + auc.values[2]) / 2)
    one = next(summary for summary in summarise(folds[:1]) if summary.name == "auc")
    assert math.isnan(one.sd)
    none = next(summary for summary in summarise([undefined]) if summary.name == "auc")
    assert math.isnan(none.mean)
    with pytest.raises(PredictionError, match="at least one finished fold"):
        summarise([])


def test_instances_in_some_folds_only():
    folds = [evaluate(with_instances(random_table(seed=1))), evaluate(random_table(seed=2))]
    names = {summary.name: summary for summary in summarise(folds)}
    assert names["attention_auc"].num_undefined == 1
    assert "attention_auc" not in {summary.name for summary in summarise(folds[1:])}


def test_written_table(tmp_path):
    path = tmp_path / "metrics.parquet"
    folds = (
        evaluate(with_instances(random_table(seed=1)), "0"),
        evaluate(random_table(seed=2), "1"),
    )
    write_metrics(path, folds)
    frame = pd.read_parquet(path)
    assert frame["fold"].tolist() == ["0", "1"]
    for metric in SLIDE_METRICS:
        values = [fold.slide[metric.key] for fold in folds]
        np.testing.assert_array_equal(frame[metric.key], values)  # NaN equals itself
    for metric in INSTANCE_METRICS:
        # The table has no single scores, of which the metrics are NaN.
        assert frame[metric.key][0] == pytest.approx(folds[0].instance[metric.key], nan_ok=True)
        assert pd.isna(frame[metric.key][1])
    assert frame["num_slides"].tolist() == [40, 40]
    assert frame["num_bags"][0] == folds[0].instance.num_bags
    assert pd.isna(frame["num_bags"][1])
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.parquet"]


def test_slides_that_were_trained_on_are_left_out():
    table = table_of([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]], [0, 1, 1, 1])
    parts = ("train", "train", "", "patient")
    seen = tuple(replace(p, seen=part) for p, part in zip(table.predictions, parts, strict=True))
    marked = replace(table, predictions=seen)
    with pytest.warns(SeenSlidesWarning, match="2 of 4 slides .* and 1 more are of 1 patient"):
        assert evaluate(marked).slide.accuracy == 0  # the third alone, which is wrong
    with pytest.warns(SeenSlidesWarning, match="too good"):
        assert evaluate(marked, keep_seen=True).slide.accuracy == 0.75
    assert measure_fold(marked).slide.accuracy == 0.75
    chosen = [replace(p, seen="validation" * (n < 2)) for n, p in enumerate(table.predictions)]
    with pytest.warns(SeenSlidesWarning, match="2 of 4 slides of the table validated the training"):
        evaluate(replace(table, predictions=tuple(chosen)))
    with pytest.raises(PredictionError, match="but 2 of 2 slides of the table were trained on"):
        evaluate(replace(marked, predictions=seen[:2]))
