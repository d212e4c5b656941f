import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    roc_auc_score,
)

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.calibration import adaptive_calibration_error
from sgpmil.evaluation.localisation.localisation import instance_uncertainty, localisation
from sgpmil.evaluation.metrics import instance_metrics
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from tests.evaluation.instance_tables import instance_table, pairs, scaled

COLON = Path(__file__).resolve().parents[4] / "shared" / "data" / "colon"


def row_of(rows, score, scope):
    (row,) = [row for row in rows if (row.score, row.scope) == (score, scope)]
    return row


def best(groups):
    """Threshold with the best mean balanced accuracy, one by one."""
    tried = sorted({v for s, _ in groups for v in s}, reverse=True)
    value = [
        np.mean([((s[y] >= t).mean() + (s[~y] < t).mean()) / 2 for s, y in groups]) for t in tried
    ]
    return tried[int(np.argmax(np.round(value, 9)))]


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("kind", ["attention", "evidence"])
@pytest.mark.parametrize("scope", ["per_slide", "pooled", "pooled_raw"])
def test_against_sklearn(kind, scope, num_classes):
    test, validation = instance_table(9, num_classes), instance_table(9, num_classes, seed=3)
    row = row_of(localisation(test, validation, fold="f"), kind, scope)

    def groups(table):
        found = pairs(table, kind, scale=scope != "pooled_raw")
        if scope == "per_slide":
            return [found[p.slide_id] for p in table.predictions if p.label > 0]
        return [tuple(np.concatenate(column) for column in zip(*found.values(), strict=True))]

    threshold = best(groups(validation))
    assert row.threshold == pytest.approx(threshold)

    def mean(metric):
        return pytest.approx(np.mean([metric(y, s) for s, y in groups(test)]))

    def call(metric):
        return mean(lambda y, s: metric(y, s >= row.threshold))

    assert row.auc == mean(roc_auc_score)
    assert row.ap == mean(average_precision_score)
    assert row.balanced_accuracy == call(balanced_accuracy_score)
    assert row.accuracy == call(accuracy_score)
    assert row.f1 == call(f1_score)
    if scope == "pooled_raw":
        assert math.isnan(row.ace)
    else:
        assert row.ace == mean(
            lambda y, s: adaptive_calibration_error(np.stack([1 - s, s], 1), y.astype(int))
        )
    positive = [p for p in test.predictions if p.label > 0]
    assert row.num_slides == (len(positive) if scope == "per_slide" else 9)
    assert row.num_instances == sum(len(y) for _, y in groups(test))
    assert row.fold == "f"
    assert row.note == ""


def test_agrees_with_the_instance_metrics():
    table = instance_table(12, 3)
    rows, expected = localisation(table), instance_metrics(table)
    for kind in ("attention", "evidence", "single"):
        row = row_of(rows, kind, "per_slide")
        assert row.auc == pytest.approx(expected[f"{kind}_auc"])
        assert row.ap == pytest.approx(expected[f"{kind}_ap"])
    attention = row_of(rows, "attention", "per_slide")
    assert attention.num_slides == expected.num_bags


def test_attention_without_knowledge():
    table = instance_table(60, num_instances=50)
    rows = localisation(table)
    uniform = row_of(rows, "uniform", "per_slide")
    shares = [y.mean() for s, (_, y) in pairs(table).items() if int(s.split("-")[1]) % 2]
    assert uniform.auc == 0.5
    assert uniform.ap == pytest.approx(np.mean(shares))
    random = row_of(rows, "random", "pooled")
    assert random.auc == pytest.approx(0.5, abs=0.05)
    assert random == row_of(localisation(table), "random", "pooled")
    assert random.auc != row_of(localisation(table, seed=1), "random", "pooled").auc


def test_pooled_raw_shows_the_size_of_slides():
    # Attention that sums to 1 is larger in smaller slides, whatever it knows.
    small, large = instance_table(10, num_instances=5), instance_table(10, seed=1, num_instances=90)
    positive = [p for p in small.predictions if p.label]
    negative = [p for p in large.predictions if not p.label]
    rows = localisation(PredictionTable((*positive, *negative), small.target))
    assert row_of(rows, "uniform", "pooled").auc == 0.5
    assert row_of(rows, "uniform", "pooled_raw").auc > 0.8


def test_chosen_scores_and_scopes_are_those_of_the_whole():
    test, validation = instance_table(8), instance_table(8, seed=3)
    whole = localisation(test, validation)
    (row,) = localisation(test, validation, scores=("attention",), scopes=("per_slide",))
    assert row == row_of(whole, "attention", "per_slide")


def test_without_validation_slides():
    for row in localisation(instance_table(8)):
        values = (row.threshold, row.balanced_accuracy, row.accuracy, row.f1)
        assert all(math.isnan(value) for value in values)
        assert row.note == "No threshold: there are no predictions of validation slides."
        assert not math.isnan(row.auc)


def test_best_on_the_test_slides_is_best_and_says_so():
    test, validation = instance_table(8), instance_table(8, seed=3)
    validated = localisation(test, validation)
    published = localisation(test, validation, threshold="best_on_test")
    for one, other in zip(validated, published, strict=True):
        assert other.balanced_accuracy >= one.balanced_accuracy - 1e-12
        assert "best on the test slides" in other.note
    gains = [
        b.balanced_accuracy - a.balanced_accuracy for a, b in zip(validated, published, strict=True)
    ]
    assert max(gains) > 0.01
    assert published == localisation(test, threshold="best_on_test")


def test_criterion():
    test, validation = instance_table(8), instance_table(8, seed=3)
    others = localisation(validation, validation)
    for row in localisation(validation, validation, criterion="f1"):
        other = row_of(others, row.score, row.scope)
        assert row.f1 >= other.f1 - 1e-12
    rows = localisation(test, validation, criterion="accuracy")
    assert row_of(rows, "uniform", "pooled").threshold == math.inf


def test_nothing_to_evaluate():
    table = instance_table(4)
    negative = PredictionTable(table.predictions[::2], table.target)
    per_slide = row_of(localisation(negative, table), "attention", "per_slide")
    assert per_slide.num_slides == per_slide.num_instances == 0
    assert math.isnan(per_slide.auc)
    assert math.isnan(per_slide.f1)
    pooled = row_of(localisation(negative, table), "attention", "pooled")
    assert math.isnan(pooled.auc)
    assert math.isnan(pooled.ap)
    assert pooled.num_slides == 2
    assert 0 <= pooled.accuracy <= 1
    bare = tuple(replace(p, instances=None) for p in table.predictions)
    empty = row_of(localisation(PredictionTable(bare, table.target)), "attention", "pooled")
    assert empty.num_slides == 0
    assert math.isnan(empty.auc)
    assert math.isnan(empty.ace)


def colon_predictions(slide_ids, direction, middle):
    import h5py

    predictions = []
    for slide_id in slide_ids:
        with h5py.File(COLON / "features" / f"{slide_id}.h5") as file:
            features = file["features"][()].astype(np.float64)
            labels = file["instance_labels"][()].astype(np.int64)
            coords = file["coords"][()]
        score = 1 / (1 + np.exp(-(features - middle) @ direction))
        scores = InstanceScores(
            score, np.zeros(len(score)), coords=coords, patch_size=48, instance_labels=labels
        )
        label = int(labels.any())
        predictions.append(
            Prediction.from_samples(slide_id, slide_id, label, np.array([[0.5, 0.5]]), scores)
        )
    return PredictionTable(tuple(predictions), ClassTarget(("no_epithelium", "epithelium")))


@pytest.mark.skipif(not COLON.exists(), reason=f"the colon nuclei are not at {COLON}")
def test_real_nuclei():
    from sklearn.linear_model import LogisticRegression

    slide_ids = sorted(path.stem for path in (COLON / "features").glob("*.h5"))
    train, validation, test = slide_ids[::3], slide_ids[1::3], slide_ids[2::3]
    import h5py

    rows, labels = [], []
    for slide_id in train:
        with h5py.File(COLON / "features" / f"{slide_id}.h5") as file:
            rows.append(file["features"][()].astype(np.float64)[:60])
            labels.append(file["instance_labels"][()][:60])
    features = np.concatenate(rows)
    middle = features.mean(axis=0)
    model = LogisticRegression(C=1e-4, max_iter=300).fit(features - middle, np.concatenate(labels))
    tables = [colon_predictions(ids, model.coef_[0], middle) for ids in (test, validation)]
    found = localisation(*tables)
    attention = row_of(found, "attention", "per_slide")
    random = row_of(found, "random", "per_slide")
    assert attention.auc > 0.8
    assert attention.ap > random.ap + 0.1
    assert attention.balanced_accuracy > 0.7
    assert random.auc == pytest.approx(0.5, abs=0.05)
    assert random.balanced_accuracy == pytest.approx(0.5, abs=0.05)
    assert attention.num_slides == instance_metrics(tables[0]).num_bags
    assert row_of(found, "attention", "pooled_raw").auc > 0.8


@pytest.mark.parametrize("choice", ["validation", "best_on_test"])
def test_uncertainty_against_sklearn(choice):
    test, validation = instance_table(9, num_instances=40), instance_table(9, seed=3)
    rows = instance_uncertainty(test, validation, threshold=choice, fold="f")
    assert [(row.score, row.scope) for row in rows] == [
        (score, scope)
        for score in ("attention", "evidence", "single")
        for scope in ("per_slide", "pooled")
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
            elif row.score == "single":
                values, std = scores.single_mean[:, 1], scores.single_std[:, 1]
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
    knowing = PredictionTable(tuple(told(p) for p in test.predictions), test.target)
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
    more = PredictionTable((*table.predictions, flat), table.target)
    validation = instance_table(8, seed=3)
    assert instance_uncertainty(more, validation)[1] == instance_uncertainty(table, validation)[1]
