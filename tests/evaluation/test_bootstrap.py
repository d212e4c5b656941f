import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError, SettingsError
from sgpmil.evaluation import bootstrap
from sgpmil.evaluation.bootstrap import bootstrap_intervals
from sgpmil.evaluation.metrics import SLIDE_METRICS, slide_metrics
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable, patient_ids, without_patients

from .tables import random_table, table_of


def with_cases(table, cases):
    predictions = (replace(p, case_id=c) for p, c in zip(table.predictions, cases, strict=True))
    return PredictionTable(tuple(predictions), table.target)


def binary(p, labels):
    return table_of(np.stack([1 - p, p], axis=1), labels)


METRIC_NAMES = tuple(metric.key for metric in SLIDE_METRICS)


def physical_rounds(tables, rounds, seed):
    """Draw the rounds one slide at a time, and measure each by the plain metrics."""
    patients = sorted({name for table in tables for name in patient_ids(table)})
    num, num_slides = len(patients), sum(map(len, tables))
    chance = []
    for place, table in enumerate(tables):
        order = np.lexsort(table.probs.T)
        some = min(50, len(table))
        chosen = order[np.round(np.linspace(0, len(table) - 1, some)).astype(int)]
        for c in sorted(set(table.labels.tolist())):
            share = (table.labels == c).sum() / num_slides / some
            chance += [(place, replace(table.predictions[i], label=c), share) for i in chosen]
    limits = np.cumsum([share for _, _, share in chance])
    rows = []
    for number in range(rounds):
        rng = np.random.default_rng([seed, number])
        by_chance = rng.binomial(num, 2 / (num + 2))
        drawn = rng.integers(num, size=num - by_chance)
        slides = [
            [p for i in drawn for p in t.predictions if (p.case_id or p.slide_id) == patients[i]]
            for t in tables
        ]
        for u in rng.random(by_chance):
            place, slide, _ = chance[int((u >= limits).sum())]
            slides[place] += [slide] * max(1, round(num_slides / num))
        metrics = [
            slide_metrics(PredictionTable(tuple(replace(p, slide_id=str(n)) for n, p in own), t))
            for own, t in (
                (list(enumerate(s)), table.target) for s, table in zip(slides, tables, strict=True)
            )
            if own
        ]
        own = np.array([[one[name] for name in METRIC_NAMES] for one in metrics])
        known = ~np.isnan(own)
        rows.append([own[k, j].mean() if k.any() else np.nan for j, k in enumerate(known.T)])
    return np.array(rows)


@pytest.mark.parametrize("num_tables", [1, 3])
def test_against_a_loop_over_physical_tables(num_tables):
    tables = []
    for place in range(num_tables):
        table = random_table(60 // num_tables, 3, seed=4 + place)
        cases = [f"case {i % 17 + 3 * place:02d}" for i in range(len(table))]
        tables.append(with_cases(table, cases).ordered(table.class_names))
    found = bootstrap_intervals(tables, rounds=40, level=0.8, seed=7)
    rows = physical_rounds(tables, 40, 7)
    own = [slide_metrics(table) for table in tables]
    for interval, column in zip(found.metrics, rows.T, strict=True):
        defined = column[~np.isnan(column)]
        assert interval.num_rounds == len(defined)
        if len(defined):
            value = np.mean([one[interval.name] for one in own])
            ends = np.quantile(defined, [0.1, 0.9])
            assert interval.value == pytest.approx(value)
            assert interval.low == pytest.approx(min(ends[0], value), abs=1e-12)
            assert interval.high == pytest.approx(max(ends[1], value), abs=1e-12)
            assert interval.low < interval.high
        else:
            assert interval.name == "sensitivity_at_95_specificity"
            assert all(map(math.isnan, (interval.low, interval.high, interval.value)))
    assert tuple(interval.name for interval in found.metrics) == METRIC_NAMES
    num_patients = len({p.case_id for table in tables for p in table.predictions})
    assert (found.num_patients, found.num_slides) == (num_patients, 60)
    assert (found.rounds, found.level) == (40, 0.8)
    if num_tables == 1:
        alone = bootstrap_intervals(tables[0], rounds=40, level=0.8, seed=7)
        assert repr(alone) == repr(found)  # NaN is not equal to itself


@pytest.mark.parametrize("num", [14, 40, 300])
def test_perfect_slides_admit_their_number(num):
    labels = np.arange(num) % 2
    perfect = without_patients(binary(np.where(labels == 1, 0.9, 0.1), labels))
    found = bootstrap_intervals(perfect, 2000)
    lowest = stats.binomtest(num, num).proportion_ci(method="wilson").low
    assert found.of("accuracy").low == pytest.approx(lowest, abs=1.5 / num)
    assert found.of("accuracy").high == found.of("auc").high == 1
    assert 1 - 4.5 / num < found.of("auc").low < 1


def test_patients_with_many_slides_admit_the_number_of_patients():
    labels = np.repeat(np.arange(12) % 2, 10)
    slides = binary(np.where(labels == 1, 0.9, 0.1), labels)
    grouped = with_cases(slides, [f"case {i // 10}" for i in range(120)])
    low = bootstrap_intervals(grouped, 2000).of("accuracy").low
    assert low == pytest.approx(
        stats.binomtest(12, 12).proportion_ci(method="wilson").low, abs=0.12
    )
    assert low < 0.9 < bootstrap_intervals(without_patients(slides), 500).of("accuracy").low


@pytest.mark.slow
def test_coverage_of_a_known_auc():
    # Scores normal around 0 and 1: the area is Φ(1 / √2). Of 150 tables, a coverage of .95 has a
    # standard error of .018; with 80 slides the percentile interval covers a little less.
    truth = stats.norm.cdf(1 / math.sqrt(2))
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 2
    nothing = np.zeros(2)
    covered = 0
    for _ in range(150):
        p = 1 / (1 + np.exp(-rng.normal(labels)))
        slides = (
            Prediction(f"{i:02d}", "", int(y), np.array([1 - q, q]), nothing, 0.0, 0.0, 0.0)
            for i, (q, y) in enumerate(zip(p, labels, strict=True))
        )
        table = PredictionTable(tuple(slides), ClassTarget(("normal", "tumour")))
        interval = bootstrap_intervals(table, rounds=150).of("auc")
        covered += interval.low <= truth <= interval.high
    assert 0.88 <= covered / 150 <= 0.99


def test_copies_of_a_slide_tell_nothing_new():
    rng = np.random.default_rng(1)
    p = rng.uniform(0.01, 0.99, 100)
    labels = (rng.random(100) < p).astype(int)
    once = without_patients(binary(p, labels))
    copies = with_cases(
        binary(np.repeat(p, 4), np.repeat(labels, 4)),
        np.repeat([f"slide-{i:03d}" for i in range(100)], 4).tolist(),
    )
    expected, found = bootstrap_intervals(once, 200), bootstrap_intervals(copies, 200)
    as_if_new = bootstrap_intervals(without_patients(copies), 200)
    for name in METRIC_NAMES:
        # Chance slides are made of other predictions of the copies.
        assert found.of(name).low == pytest.approx(expected.of(name).low, abs=0.02, nan_ok=True)
        assert found.of(name).high == pytest.approx(expected.of(name).high, abs=0.02, nan_ok=True)
    for name in ("accuracy", "auc", "brier", "nll"):
        width = found.of(name).high - found.of(name).low
        too_narrow = as_if_new.of(name).high - as_if_new.of(name).low
        # Four times the slides halve it.
        assert too_narrow / width == pytest.approx(0.5, abs=0.12)


def test_rounds_without_a_class_are_left_out_and_counted():
    # A draw is the one positive of 6 patients with the chance 1/8, or a chance slide of its label
    # with 2/8 · 1/6.
    table = without_patients(binary(np.array([0.1, 0.2, 0.3, 0.6, 0.4, 0.5]), [0, 0, 0, 0, 0, 1]))
    found = bootstrap_intervals(table, rounds=2000)
    assert found.of("auc").num_rounds / 2000 == pytest.approx(
        1 - (1 - 1 / 8 - 1 / 24) ** 6, abs=0.035
    )
    assert found.of("f1").num_rounds == found.of("auc").num_rounds
    assert found.of("brier").num_rounds == 2000
    assert 0 <= found.of("auc").low <= found.of("auc").value <= found.of("auc").high <= 1


def test_undefined_stays_undefined():
    table = without_patients(binary(np.array([0.1, 0.2, 0.3]), [0, 0, 0]))
    auc = bootstrap_intervals(table, rounds=10).of("auc")
    assert auc.num_rounds == 0
    assert all(math.isnan(number) for number in (auc.value, auc.low, auc.high))


def test_only_seed_and_patients_decide(monkeypatch):
    table = random_table(50, seed=3)
    shuffled = [table.predictions[i] for i in np.random.default_rng(0).permutation(50)]
    shuffled = PredictionTable(tuple(shuffled), table.target)
    found = bootstrap_intervals(table, 30)
    again = bootstrap_intervals(shuffled, 30)
    monkeypatch.setattr(bootstrap, "_CHUNK", 150)
    in_threes = bootstrap_intervals(table, 30)
    monkeypatch.setattr(bootstrap, "_CHUNK", 1)
    one_by_one = bootstrap_intervals(table, 30)
    for other in (again, in_threes, one_by_one):
        for name in METRIC_NAMES:
            assert other.of(name).low == pytest.approx(found.of(name).low, abs=1e-13, nan_ok=True)
            assert other.of(name).high == pytest.approx(found.of(name).high, abs=1e-13, nan_ok=True)
    other_seed = bootstrap_intervals(table, 30, seed=1)
    assert other_seed.of("brier").low != found.of("brier").low


def test_wider_at_a_higher_level():
    table = random_table(80)
    widths = []
    for level in (0.5, 0.9, 0.99):
        interval = bootstrap_intervals(table, 300, level).of("nll")
        assert interval.low < interval.value < interval.high
        widths.append(interval.high - interval.low)
    assert widths[0] < widths[1] < widths[2]


def test_unlabelled_slides_are_left_out():
    probs = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]]
    with_gap = without_patients(table_of(probs, [0, 1, None, 1]))
    without = without_patients(table_of(probs, [0, 1, None, 1])).labelled()
    found, expected = bootstrap_intervals(with_gap, 20), bootstrap_intervals(without, 20)
    assert found.num_slides == 3
    assert found.of("brier") == expected.of("brier")
    with pytest.raises(PredictionError, match="at least one slide with a label"):
        bootstrap_intervals(table_of(probs, [None] * 4))


def test_one_patient_cannot_be_resampled():
    table = with_cases(random_table(9), ["patient_1"] * 9)
    with pytest.raises(PredictionError, match="all 9 slides with a label are of 'patient_1'"):
        bootstrap_intervals(table)
    assert bootstrap_intervals(without_patients(table), 5).num_patients == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "at least one round, but got 0"),
        ({"level": 95.0}, "between 0 and 1, but got 95"),
        ({"level": 0.0}, "between 0 and 1"),
        ({"seed": -1}, "seed of at least 0"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(SettingsError, match=message):
        bootstrap_intervals(random_table(4), **settings)


def test_no_such_metric():
    with pytest.raises(PredictionError, match=r"one of the metrics balanced.* got 'AUC'"):
        bootstrap_intervals(random_table(4), 2).of("AUC")
