import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mapie.classification import SplitConformalClassifier
from mapie.metrics.classification import (
    classification_coverage_score,
    classification_mean_width_score,
)
from scipy.stats import beta
from sklearn.base import BaseEstimator, ClassifierMixin

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import (
    ConformalPredictor,
    conformal_method,
    conformal_quantile,
    fit_conformal,
    pooled_set_metrics,
    set_metrics,
)
from tests.evaluation.tables import table_of
from tests.evaluation.uncertain_tables import built, model_table, slides

pytestmark = pytest.mark.slow


class Fixed(ClassifierMixin, BaseEstimator):
    """A classifier whose input are the probabilities."""

    def __init__(self, num_classes=2):
        self.num_classes = num_classes

    def fit(self, x, y):
        return self

    def predict_proba(self, x):
        return np.asarray(x)

    def predict(self, x):
        return np.asarray(x).argmax(axis=1)

    @property
    def classes_(self):
        return np.arange(self.num_classes)

    def __sklearn_is_fitted__(self):
        return True


def mapie_sets(calibration, test, coverage, score, seed=None, include_last_label=True):
    model = SplitConformalClassifier(
        Fixed(calibration.num_classes),
        confidence_level=coverage,
        conformity_score=score,
        prefit=True,
        random_state=seed,
    )
    model.conformalize(calibration.probs, calibration.labels)
    options = {"include_last_label": include_last_label} if score == "aps" else {}
    _, sets = model.predict_set(test.probs, conformity_score_params=options)
    return sets[:, :, 0], float(model._mapie_classifier.quantiles_[0])


def brute_force_score(probs, c, u, method):
    """Score one class of one slide with Python numbers."""
    if method == "lac":
        return 1 - probs[c]
    above = sum(p for k, p in enumerate(probs) if p > probs[c] or (p == probs[c] and k < c))
    return above + (1 - u) * probs[c]


@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_lac_sets_are_those_of_mapie(num_classes, coverage):
    calibration = model_table(60, num_classes, seed=1, sharpness=2)
    test = model_table(200, num_classes, seed=2, sharpness=2)
    expected, quantile = mapie_sets(calibration, test, coverage, "lac")
    predictor = fit_conformal(calibration, coverage)
    np.testing.assert_allclose(predictor.thresholds, quantile, atol=1e-12)
    found = predictor.sets(test, allow_empty=True)
    np.testing.assert_array_equal(found.members, expected)
    np.testing.assert_array_equal(found.was_empty, ~expected.any(axis=1))


@pytest.mark.parametrize("num_classes", [3, 5])  # MAPIE has no APS of two classes
@pytest.mark.parametrize("randomised", [False, True])
def test_aps_sets_are_those_of_mapie_at_its_own_random_numbers(
    num_classes, randomised, monkeypatch
):
    calibration = model_table(60, num_classes, seed=3, sharpness=2)
    test = model_table(200, num_classes, seed=4, sharpness=2)
    expected, quantile = mapie_sets(
        calibration, test, 0.8, "aps", 7, "randomized" if randomised else True
    )
    # MAPIE draws from another generator, and anew from its seed for the test slides.
    monkeypatch.setattr(np.random, "default_rng", np.random.RandomState)
    predictor = fit_conformal(calibration, 0.8, "aps", seed=7)
    np.testing.assert_allclose(predictor.thresholds, quantile, atol=1e-12)
    found = predictor.sets(test, allow_empty=True, seed=7 if randomised else None)
    np.testing.assert_array_equal(found.members, expected)


@pytest.fixture(scope="module")
def pool():
    """Slides of an overconfident model, of which calibrations are drawn."""
    return model_table(2000, 3, seed=11, sharpness=2)


def drawn_from(pool, seed):
    """Draw 39 slides to calibrate on, and 20 others."""
    drawn = np.random.default_rng(seed).permutation(len(pool))[:59]
    return tuple(
        PredictionTable(tuple(pool.predictions[i] for i in part), pool.target)
        for part in (drawn[:39], drawn[39:])
    )


def covered(pool, method, seed, randomised=True, **options):
    """Say which of the 20 slides are covered to nominally 0.9."""
    calibration, test = drawn_from(pool, seed)
    predictor = fit_conformal(calibration, 0.9, method, seed=seed)
    sets = predictor.sets(test, seed=seed + 10_000 if randomised else None, **options)
    return sets.members[np.arange(len(test)), test.labels]


def test_randomised_aps_and_mapie_agree_on_average(pool):
    gaps = []
    for seed in range(40):
        calibration, test = drawn_from(pool, seed)
        predictor = fit_conformal(calibration, 0.8, "aps", seed=seed)
        ours = predictor.sets(test, allow_empty=True, seed=seed).members
        theirs, _ = mapie_sets(calibration, test, 0.8, "aps", seed, "randomized")
        gaps.append(ours.sum(axis=1).mean() - theirs.sum(axis=1).mean())
    assert 0 < abs(np.mean(gaps)) < 2 * np.std(gaps, ddof=1) / np.sqrt(len(gaps))


@pytest.mark.usefixtures("unchecked_shapes")  # they take most of the time
@pytest.mark.parametrize("method", ["lac", "aps"])
def test_coverage_over_500_calibrations(method, pool):
    found = [covered(pool, method, seed, allow_empty=True).mean() for seed in range(500)]
    error = np.std(found, ddof=1) / np.sqrt(500)
    # 40 · 0.9 is whole, so the coverage is exactly nominal, not only at least.
    assert abs(np.mean(found) - 0.9) < 2 * error
    # Over calibrations it has a Beta distribution; the 20 test slides add theirs.
    law = beta(36, 4)
    variance = law.var() + (law.mean() - law.moment(2)) / 20
    assert np.var(found, ddof=1) == pytest.approx(variance, rel=0.2)


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_deterministic_sets_cover_whatever_the_randomised_ones_do(method, pool):
    extra = 0
    for seed in range(20):
        exact = covered(pool, method, seed, allow_empty=True)
        filled = covered(pool, method, seed)
        deterministic = covered(pool, method, seed, randomised=False)
        assert (exact <= filled).all()
        assert (filled <= deterministic).all()
        extra += int(deterministic.sum() - exact.sum())
    assert extra > 0 or method == "lac"


@settings(max_examples=60)
@given(
    slides(max_slides=20),
    st.sampled_from([0.3, 0.5, 0.8, 0.9]),
    st.sampled_from(["lac", "aps"]),
    st.booleans(),
)
def test_against_a_loop(drawn, coverage, method, per_class):
    table = built(drawn)
    found = fit_conformal(table, coverage, method, per_class=per_class, seed=3)
    probs, labels = table.probs, table.labels
    u = np.random.default_rng(3).uniform(size=len(table))
    own = [brute_force_score(probs[i], labels[i], u[i], method) for i in range(len(table))]
    for c in range(table.num_classes):
        group = sorted(s for s, y in zip(own, labels, strict=True) if y == c or not per_class)
        rank = math.ceil((len(group) + 1) * coverage - 1e-9)
        expected = group[rank - 1] if rank <= len(group) else math.inf
        assert found.thresholds[c] == pytest.approx(expected, abs=1e-9)
    for seed, allow_empty in ((None, False), (None, True), (5, True)):
        sets = found.sets(table, allow_empty=allow_empty, seed=seed)
        v = np.random.default_rng(5).uniform(size=len(table))
        for i, members in enumerate(sets.members):
            top = int(probs[i].argmax())
            for c, member in enumerate(members):
                q = found.thresholds[c]
                whole, above = (brute_force_score(probs[i], c, x, "aps") for x in (0.0, 1.0))
                if method == "lac":
                    expected = 1 - probs[i, c] <= q + 1e-9
                elif seed is None:
                    expected = above < q - 1e-9 or whole <= q + 1e-9
                else:
                    expected = brute_force_score(probs[i], c, v[i], "aps") <= q + 1e-9
                if not allow_empty and sets.was_empty[i]:
                    expected = c == top
                assert member == expected or abs(above - q) <= 1e-9
            assert allow_empty or members.any()
            if allow_empty:
                assert sets.was_empty[i] == (not members.any())


@settings(max_examples=60)
@given(slides(max_slides=20), st.sampled_from(["lac", "aps"]), st.booleans())
def test_the_slides_that_calibrated_are_covered(drawn, method, per_class):
    # Not a promise about new slides, but without it the quantile would be wrong.
    table = built(drawn)
    predictor = fit_conformal(table, 0.8, method, per_class=per_class)
    members = predictor.sets(table).members
    own = members[np.arange(len(table)), table.labels]
    groups = [table.labels == c for c in range(table.num_classes)] if per_class else [own >= 0]
    for group in groups:
        assert own[group].sum() >= math.floor(0.8 * group.sum())


def test_a_class_without_probability_is_covered_when_it_must_be():
    # Half of the slides are of a class to which the model gives no probability at all.
    table = table_of([[1.0, 0.0]] * 20, [0, 1] * 10)
    for method in ("lac", "aps"):
        assert fit_conformal(table, 0.9, method).sets(table).members.all()


@example(99, 55)  # 100 · 0.55 is 55.00000000000001 in floating point
@given(st.integers(1, 400), st.integers(1, 99))
def test_the_rank_is_that_of_whole_numbers(n, percent):
    scores = np.arange(1.0, n + 1)
    rank = -(-(n + 1) * percent // 100)  # the ceiling, in whole numbers
    assert conformal_quantile(scores, percent / 100) == (rank if rank <= n else math.inf)


def test_too_few_slides_give_all_classes_and_say_so():
    few = model_table(8, 3, seed=1)
    predictor = fit_conformal(few, 0.9)
    assert predictor.sets(model_table(20, 3, seed=2)).members.all()
    assert predictor.note == (
        "A coverage of 0.9 needs at least 9 calibration slides, but there are 8: every set holds "
        "all classes."
    )
    enough = fit_conformal(model_table(9, 3, seed=1), 0.9)
    assert enough.note == ""
    assert np.isfinite(enough.thresholds).all()


def test_a_rare_class_is_in_every_set_of_its_own():
    probs = np.random.default_rng(0).dirichlet(np.ones(3), size=60)
    labels = [0] * 40 + [1] * 15 + [2] * 5
    predictor = fit_conformal(table_of(probs, labels), 0.9, per_class=True)
    assert np.isinf(predictor.thresholds).tolist() == [False, False, True]
    assert predictor.num_calibration == (40, 15, 5)
    assert predictor.note.endswith(
        "of every class, but there are fewer of c2 (5): every set holds them."
    )
    members = predictor.sets(table_of(probs, labels)).members
    assert members[:, 2].all()
    assert not members[:, 0].all()


def test_each_class_is_covered_on_its_own():
    calibration = model_table(900, 3, seed=5, sharpness=3)
    rare = tuple(p for i, p in enumerate(calibration.predictions) if p.label != 2 or i % 4 == 0)
    test = model_table(1500, 3, seed=6, sharpness=3)
    own = fit_conformal(PredictionTable(rare, test.target), 0.8, per_class=True)
    members = own.sets(test, allow_empty=True).members
    for c in range(3):
        of_class = test.labels == c
        n, share = int(of_class.sum()), members[of_class, c].mean()
        calibrated = own.num_calibration[c]
        error = math.sqrt(0.8 * 0.2 * (1 / n + 1 / calibrated))
        assert abs(share - 0.8) < 3 * error


def test_empty_sets_get_the_most_probable_class():
    predictor = ConformalPredictor(
        "lac", 0.5, np.array([0.1, 0.1]), (5, 5), False, ClassTarget(("a", "b"))
    )
    table = table_of([[0.95, 0.05], [0.4, 0.6]], [0, 1], ("a", "b"))
    filled = predictor.sets(table)
    assert filled.names() == (("a",), ("b",))
    assert filled.was_empty.tolist() == [False, True]
    assert predictor.sets(table, allow_empty=True).names() == (("a",), ())
    assert len(filled) == 2


def test_rounded_probabilities_make_no_difference():
    table = table_of([[0.3333, 0.6666], [0.9, 0.1], [0.2, 0.8]] * 5, [1, 0, 1] * 5)
    exact = table_of(table.probs / table.probs.sum(axis=1, keepdims=True), table.labels.tolist())
    for method in ("lac", "aps"):
        one, other = (fit_conformal(t, 0.8, method) for t in (table, exact))
        np.testing.assert_allclose(one.thresholds, other.thresholds, atol=1e-12)
        np.testing.assert_array_equal(one.sets(table).members, other.sets(exact).members)


def test_the_seed_decides():
    table, test = model_table(50, 3, seed=1), model_table(100, 3, seed=2)
    one, again, other = (fit_conformal(table, 0.8, "aps", seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.thresholds, again.thresholds)
    assert one.thresholds[0] != other.thresholds[0]
    np.testing.assert_array_equal(one.sets(test, seed=3).members, one.sets(test, seed=3).members)
    assert (one.sets(test, seed=3).members != one.sets(test, seed=4).members).any()


def test_impossible_input():
    table = table_of([[0.5, 0.5], [0.2, 0.8]], [0, 1])
    for coverage in (0.0, 1.0, 90.0, math.nan):
        with pytest.raises(PredictionError, match="coverage between 0 and 1"):
            fit_conformal(table, coverage)
    with pytest.raises(PredictionError, match="calibration slides with labels"):
        fit_conformal(table_of([[0.5, 0.5]], [None]))
    with pytest.raises(PredictionError, match="the classes c0, c1, as of the"):
        fit_conformal(table).sets(table_of([[0.5, 0.5]], [0], ("c1", "c0")))
    with pytest.raises(PredictionError, match="'lac' or 'aps', but got 'raps'"):
        conformal_method("raps")
    assert (conformal_method("lac"), conformal_method("aps")) == ("lac", "aps")


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_against_mapie(method):
    predictor = fit_conformal(model_table(60, 3, seed=1), 0.7, method)
    test = model_table(150, 3, seed=2)
    found = set_metrics(predictor, test)
    members = predictor.sets(test).members
    one_level = members[:, :, None]
    assert found.coverage == pytest.approx(classification_coverage_score(test.labels, one_level)[0])
    assert found.mean_size == pytest.approx(classification_mean_width_score(one_level)[0])
    for c in range(3):
        own = test.labels == c
        expected = classification_coverage_score(test.labels[own], one_level[own])[0]
        assert found.class_coverage[c] == pytest.approx(expected)
        width = classification_mean_width_score(one_level[own])[0]
        assert found.class_size[c] == pytest.approx(width)
    assert (found.method, found.nominal, found.num_slides) == (method, 0.7, 150)


@settings(max_examples=40)
@given(slides(), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_set_metrics_against_a_loop(drawn, thresholds):
    table = built(drawn)
    num_classes = table.num_classes
    predictor = ConformalPredictor(
        "lac",
        0.9,
        np.array(thresholds[:num_classes]),
        (1,) * num_classes,
        True,
        table.target,
    )
    found = set_metrics(predictor, table)
    sets = [set(names) for names in predictor.sets(table).names()]
    raw = [set(names) for names in predictor.sets(table, allow_empty=True).names()]
    names = [table.class_names[y] for y in table.labels]
    hits = [name in own for name, own in zip(names, sets, strict=True)]
    assert found.coverage == pytest.approx(sum(hits) / len(hits))
    assert found.mean_size == pytest.approx(sum(map(len, sets)) / len(sets))
    assert found.share_empty == pytest.approx(sum(not own for own in raw) / len(raw))
    assert found.share_single == pytest.approx(sum(len(own) == 1 for own in sets) / len(sets))
    for c, name in enumerate(table.class_names):
        own = [i for i, other in enumerate(names) if other == name]
        if own:
            assert found.class_coverage[c] == pytest.approx(np.mean([hits[i] for i in own]))
            assert found.class_size[c] == pytest.approx(np.mean([len(sets[i]) for i in own]))
        else:
            assert math.isnan(found.class_coverage[c])
            assert math.isnan(found.class_size[c])


def test_pooling_counts_every_slide_once():
    predictor = fit_conformal(model_table(60, 3, seed=1), 0.7)
    tables = [model_table(n, 3, seed=n, name=f"{n}-") for n in (5, 40, 17)]
    pooled = pooled_set_metrics([set_metrics(predictor, table) for table in tables])
    predictions = tuple(p for table in tables for p in table.predictions)
    whole = set_metrics(predictor, type(tables[0])(predictions, tables[0].target))
    for name in ("coverage", "mean_size", "share_empty", "share_single", "num_slides"):
        assert getattr(pooled, name) == getattr(whole, name)
    np.testing.assert_array_equal(pooled.class_coverage, whole.class_coverage)
    np.testing.assert_array_equal(pooled.class_size, whole.class_size)


def test_no_slides_are_nan():
    predictor = fit_conformal(table_of([[0.9, 0.1], [0.2, 0.8]], [0, 1]), 0.5)
    found = set_metrics(predictor, table_of([[0.5, 0.5]], [None]))
    numbers = (found.coverage, found.mean_size, found.share_empty, found.share_single)
    assert np.isnan([*numbers, *found.class_coverage, *found.class_size]).all()


def test_sets_that_cannot_be_pooled():
    table = model_table(60, 3, seed=1)
    one, other = (set_metrics(fit_conformal(table, c), table) for c in (0.7, 0.8))
    with pytest.raises(PredictionError, match="2 different ones"):
        pooled_set_metrics([one, other])
    with pytest.raises(PredictionError, match="0 different ones"):
        pooled_set_metrics([])
