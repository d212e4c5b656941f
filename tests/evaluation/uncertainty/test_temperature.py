import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.temperature import (
    BIAS_SPREAD,
    TEMPERATURE_BOUNDS,
    TEMPERATURE_SPREAD,
    scale_probabilities,
)
from sgpmil.evaluation.uncertainty.temperature import fit_temperature as fit
from tests.evaluation.tables import random_scores, random_table, table_of
from tests.evaluation.uncertain_tables import built, model_table, slides

fit_temperature = partial(fit, spread=math.inf)
"""The fit by the likelihood alone."""


def loss(log_temperature, probs, labels):
    """Negative log-likelihood after the temperature, by scipy alone."""
    logs = np.log(np.maximum(probs, 1e-12)) / math.exp(log_temperature)
    return -log_softmax(logs, axis=1)[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize("sharpness", [0.4, 1.0, 3.0])
def test_against_scipy_and_a_grid(num_classes, sharpness):
    table = model_table(150, num_classes, seed=num_classes, sharpness=sharpness)
    found = fit_temperature(table)
    probs, labels = table.probs, table.labels
    best = minimize_scalar(
        loss, bounds=np.log(TEMPERATURE_BOUNDS), args=(probs, labels), method="bounded"
    )
    assert math.log(found.value) == pytest.approx(best.x, abs=1e-4)
    assert found.nll_after <= best.fun + 1e-12
    grid = np.linspace(*np.log(TEMPERATURE_BOUNDS), 2000)
    losses = [loss(x, probs, labels) for x in grid]
    step = grid[1] - grid[0]
    assert abs(math.log(found.value) - grid[int(np.argmin(losses))]) <= step
    assert found.nll_after <= min(losses)
    assert found.nll_before == pytest.approx(log_loss(labels, probs, labels=range(num_classes)))
    scaled = found.apply(table)
    assert found.nll_after == pytest.approx(
        log_loss(labels, scaled.probs, labels=range(num_classes))
    )
    assert (found.at_bound, found.identified, found.note) == (None, True, "")


@pytest.mark.parametrize("right", [6, 7, 9])
@pytest.mark.parametrize("confidence", [0.6, 0.99, 1 - 1e-9])
def test_closed_form_of_one_confidence(right, confidence):
    # Every slide says `confidence`, and `right` of 10 are right: the scaled confidence must be
    # the accuracy, so T = logit(confidence) / logit(accuracy).
    probs = [[1 - confidence, confidence]] * 10
    found = fit_temperature(table_of(probs, [1] * right + [0] * (10 - right)))
    expected = math.log(confidence / (1 - confidence)) / math.log(right / (10 - right))
    if TEMPERATURE_BOUNDS[0] < expected < TEMPERATURE_BOUNDS[1]:
        assert found.value == pytest.approx(expected, rel=1e-6)
        assert scale_probabilities(np.array(probs), found.value)[0, 1] == pytest.approx(right / 10)
    else:
        assert found.value == TEMPERATURE_BOUNDS[1]
        assert found.at_bound == "upper"


def test_the_temperature_of_a_sharpened_model_is_recovered():
    table = model_table(4000, 3, seed=0, sharpness=2.5)
    assert fit_temperature(table).value == pytest.approx(2.5, rel=0.1)


def test_two_temperatures_in_a_row_are_their_product(rng):
    probs = rng.dirichlet(np.ones(4), size=30)
    twice = scale_probabilities(scale_probabilities(probs, 2.0), 3.0)
    np.testing.assert_allclose(twice, scale_probabilities(probs, 6.0), atol=1e-12)
    np.testing.assert_allclose(scale_probabilities(probs, 1.0), probs, atol=1e-12)
    np.testing.assert_allclose(
        scale_probabilities(probs, 0.7), softmax(np.log(probs) / 0.7, axis=1), atol=1e-12
    )


@pytest.mark.parametrize("probs", [[[0.9, 0.1], [0.4, 0.6]], [[1.0, 0.0], [0.0, 1.0]]])
def test_without_an_error_the_temperature_stops_at_its_bound(probs):
    found = fit_temperature(table_of(probs, [0, 1]))
    assert found.value == TEMPERATURE_BOUNDS[0]
    assert found.at_bound == "lower"
    assert found.note.startswith("The temperature stopped at its lower bound 0.05")


def test_many_separated_slides_stop_at_the_bound_despite_rounding(rng):
    probs = rng.dirichlet(np.ones(3), size=500)
    assert fit_temperature(table_of(probs, probs.argmax(axis=1))).at_bound == "lower"


def test_worse_than_chance_stops_at_the_other_bound():
    found = fit_temperature(table_of([[0.9, 0.1], [0.2, 0.8]], [1, 0]))
    assert (found.value, found.at_bound) == (TEMPERATURE_BOUNDS[1], "upper")
    assert "hardly better than chance" in found.note


@pytest.mark.parametrize("probs", [[[1.0], [1.0]], [[0.5, 0.5], [0.5, 0.5]], [[1 / 3] * 3] * 2])
def test_what_says_nothing_of_the_temperature_leaves_it_1(probs):
    found = fit_temperature(table_of(probs, [0, 0]))
    assert (found.value, found.identified, found.at_bound) == (1.0, False, None)
    assert "stays 1" in found.note


@settings(max_examples=60)
@given(slides(), st.sampled_from([*TEMPERATURE_BOUNDS, 0.3, 1.0, 4.0]))
def test_the_predicted_class_never_changes(drawn, temperature):
    table = built(drawn)
    scaled = scale_probabilities(table.probs, temperature)
    np.testing.assert_array_equal(scaled.argmax(axis=1), table.probs.argmax(axis=1))
    np.testing.assert_allclose(scaled.sum(axis=1), 1.0, atol=1e-9)
    found = fit_temperature(table)
    assert TEMPERATURE_BOUNDS[0] <= found.value <= TEMPERATURE_BOUNDS[1]
    assert found.nll_after <= found.nll_before + 1e-9
    # No temperature on a grid does better.
    for x in np.linspace(*np.log(TEMPERATURE_BOUNDS), 25):
        assert loss(math.log(found.value), table.probs, table.labels) <= (
            loss(x, table.probs, table.labels) + 1e-9
        )


def test_probabilities_a_rounding_step_apart_keep_their_order():
    half = 0.5
    probs = np.array([[np.nextafter(half, 0), half], [half, np.nextafter(half, 0)]])
    np.testing.assert_array_equal(scale_probabilities(probs, 20.0).argmax(axis=1), [1, 0])


def test_what_is_known_of_scaled_predictions():
    scores = random_scores(5)
    table = random_table(12, 3)
    table = PredictionTable((*table.predictions, *_one_with(scores).predictions), table.target)
    scaled = fit_temperature(table).apply(table)
    assert np.isnan(scaled.std).all()
    assert all(math.isnan(p.expected_entropy) for p in scaled.predictions)
    assert all(math.isnan(p.mutual_information) for p in scaled.predictions)
    for p in scaled.predictions:
        assert p.entropy == pytest.approx(-sum(q * math.log(q) for q in p.probs))
    assert scaled.slide_ids == table.slide_ids
    assert [p.label for p in scaled.predictions] == [p.label for p in table.predictions]
    assert scaled.predictions[-1].instances is scores


def _one_with(scores):
    from sgpmil.evaluation.prediction import Prediction

    one = Prediction.from_samples("z", "z", 0, np.array([[0.5, 0.3, 0.2]]), scores)
    return PredictionTable((one,), ClassTarget(("class 0", "class 1", "class 2")))


def test_slides_without_a_label_are_left_out():
    probs, labels = [[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]], [0, 1, 1]
    known = fit_temperature(table_of(probs, labels))
    more = fit_temperature(table_of([*probs, [0.99, 0.01]], [*labels, None]))
    assert more == known


def test_impossible_input():
    with pytest.raises(PredictionError, match="validation slides with labels"):
        fit_temperature(table_of([[0.5, 0.5]], [None]))
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(PredictionError, match="temperature above 0"):
            scale_probabilities(np.ones((1, 1)), temperature)


def penalised(point, probs, labels, *, bias):
    """The objective with its priors, by scipy alone; the point is log T and the biases."""
    logits = np.log(np.maximum(probs, 1e-12)) / math.exp(point[0])
    if bias:
        logits = logits + point[1:]
    likelihood = log_softmax(logits, axis=1)[np.arange(len(labels)), labels].sum()
    prior = point[0] ** 2 / (2 * TEMPERATURE_SPREAD**2)
    return -likelihood + prior + (np.sum(point[1:] ** 2) / (2 * BIAS_SPREAD**2) if bias else 0)


@pytest.mark.parametrize("num_slides", [12, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_the_priors_against_a_search_by_scipy(num_slides, bias):
    table = model_table(num_slides, 3, seed=num_slides, sharpness=2.0)
    found = fit(table, bias=bias)
    start = np.zeros(4 if bias else 1)
    options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000}
    best = minimize(
        partial(penalised, bias=bias),
        start,
        (table.probs, table.labels),
        method="Nelder-Mead",
        options=options,
    )
    assert math.log(found.value) == pytest.approx(best.x[0], abs=1e-3)
    if bias:
        np.testing.assert_allclose(found.bias, best.x[1:], atol=2e-3)
    scaled = softmax(np.log(table.probs) / found.value + (found.bias or 0), axis=1)
    np.testing.assert_allclose(found.apply(table).probs, scaled, atol=1e-12)
    assert found.nll_after == pytest.approx(log_loss(table.labels, scaled, labels=range(3)))


@pytest.mark.parametrize("bias", [False, True])
def test_a_dozen_slides_without_an_error_stay_near_1(bias):
    probs = np.array([[0.9, 0.1], [0.2, 0.8]] * 6)
    found = fit(table_of(probs.tolist(), [0, 1] * 6), bias=bias)
    assert 0.4 < found.value < 1
    assert (found.at_bound, found.note) == (None, "")
    assert np.abs(found.bias).max(initial=0) < 0.25


def test_many_slides_outweigh_the_prior():
    table = model_table(4000, 3, seed=0, sharpness=4.0)
    assert fit(table).value == pytest.approx(fit_temperature(table).value, rel=0.01)


def test_a_bias_mends_a_prevalence(rng):
    # Labels at a tenth of the odds that the probabilities were made for.
    odds = np.exp(rng.normal(0, 2, 5000))
    labels = (rng.uniform(size=5000) < odds / 10 / (1 + odds / 10)).astype(int)
    table = table_of(np.stack([1 / (1 + odds), odds / (1 + odds)], 1).tolist(), labels.tolist())
    found = fit(table, bias=True)
    assert found.value == pytest.approx(1, abs=0.1)
    assert found.bias[1] - found.bias[0] == pytest.approx(-math.log(10), abs=0.15)
    assert found.apply(table).probs[:, 1].mean() == pytest.approx(labels.mean(), abs=0.005)
    assert fit(table).apply(table).probs[:, 1].mean() > labels.mean() + 0.1


@pytest.mark.parametrize("spread", [0.0, -1.0, math.nan])
def test_impossible_spreads_are_refused(spread):
    with pytest.raises(PredictionError, match="spread above 0"):
        fit(table_of([[0.9, 0.1]], [0]), spread=spread)
