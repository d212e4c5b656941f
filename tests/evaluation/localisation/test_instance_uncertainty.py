import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from sgpmil.evaluation.localisation.instance_uncertainty import instance_uncertainty
from sgpmil.evaluation.localisation.localisation import localisation
from sgpmil.evaluation.prediction_table import PredictionTable
from tests.evaluation.instance_tables import instance_table, scaled


@pytest.mark.parametrize("choice", ["validation", "best_on_test"])
def test_against_sklearn(choice):
    test, validation = instance_table(9, num_instances=40), instance_table(9, seed=3)
    rows = instance_uncertainty(test, validation, threshold=choice, fold="f")
    assert [(row.score, row.scope) for row in rows] == [
        (score, scope) for score in ("attention", "evidence") for scope in ("per_slide", "pooled")
    ]
    thresholds = {
        (row.score, row.scope): row.threshold
        for row in localisation(test, validation, threshold=choice)
    }
    for row in rows:
        assert row.threshold == thresholds[row.score, row.scope]
        stds, margins, wrongs = [], [], []
        for p in test.predictions:
            if row.scope == "per_slide" and p.label == 0:
                continue
            scores = p.instances
            if row.score == "attention":
                values, std = scores.attention_mean, scores.attention_std
            else:
                values = scores.evidence_mean[:, 1] - scores.evidence_mean[:, 0]
                signed = np.sign(scores.evidence_mean) * scores.evidence_std
                std = np.abs(signed[:, 1] - signed[:, 0])
            known = scores.instance_labels >= 0
            std, s = std[known] / np.ptp(values), scaled(values)[known]
            stds.append(std)
            margins.append(-np.abs(s - row.threshold))
            wrongs.append((s >= row.threshold) != (scores.instance_labels[known] == 1))
        if row.scope == "per_slide":
            kept = [k for k, w in enumerate(wrongs) if 0 < w.sum() < len(w)]
            expected = [
                np.mean([roc_auc_score(wrongs[k], column[k]) for k in kept])
                for column in (stds, margins)
            ]
            assert row.num_slides == len(kept) > 0
            assert row.num_wrong == sum(wrongs[k].sum() for k in kept)
        else:
            wrong = np.concatenate(wrongs)
            expected = [roc_auc_score(wrong, np.concatenate(column)) for column in (stds, margins)]
            assert row.num_slides == 9
            assert row.num_wrong == wrong.sum()
            assert row.num_instances == len(wrong)
        assert [row.std_auroc, row.margin_auroc] == pytest.approx(expected)
        assert row.note == ""
        assert row.fold == "f"


def test_a_spread_that_knows_the_errors():
    test, validation = instance_table(9, num_instances=40), instance_table(9, seed=3)
    (threshold,) = [
        row.threshold
        for row in localisation(test, validation)
        if (row.score, row.scope) == ("attention", "pooled")
    ]

    def told(p):
        wrong = (scaled(p.instances.attention_mean) >= threshold) != (
            p.instances.instance_labels == 1
        )
        return replace(p, instances=replace(p.instances, attention_std=0.1 + wrong))

    # In every slide the same range, so that the scale does not mix the two levels.
    knowing = PredictionTable(tuple(told(p) for p in test.predictions), test.class_names)
    pooled = instance_uncertainty(knowing, validation)[1]
    assert pooled.std_auroc > 0.95
    assert pooled.std_auroc > pooled.margin_auroc


def test_a_model_without_spread():
    zero = np.zeros(25)
    test = instance_table(8, attention_std=zero)
    rows = instance_uncertainty(test, instance_table(8, seed=3))
    attention = rows[1]
    assert math.isnan(attention.std_auroc)
    assert not math.isnan(attention.margin_auroc)
    assert attention.note == "The model gives no spread."
    assert rows[3].note == ""
    unknown = instance_table(8, attention_std=np.full(25, np.nan))
    assert math.isnan(instance_uncertainty(unknown, instance_table(8, seed=3))[1].std_auroc)


def test_without_a_threshold():
    for row in instance_uncertainty(instance_table(8)):
        assert math.isnan(row.std_auroc)
        assert math.isnan(row.margin_auroc)
        assert math.isnan(row.threshold)
        assert row.num_wrong == row.num_instances == 0
        assert "no predictions of validation slides" in row.note


def test_slides_of_equal_scores_have_no_scale():
    table = instance_table(8)
    flat = replace(
        table.predictions[1],
        slide_id="flat",
        instances=replace(table.predictions[1].instances, attention_mean=np.ones(25)),
    )
    more = PredictionTable((*table.predictions, flat), table.class_names)
    validation = instance_table(8, seed=3)
    assert instance_uncertainty(more, validation)[1] == instance_uncertainty(table, validation)[1]
