from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import rankdata

from sgpmil.errors import PredictionError
from sgpmil.evaluation import InstanceScores
from sgpmil.explanation.map_layers import (
    attention_values,
    finite_scores,
    map_layers,
    map_limits,
    num_without_score,
)
from tests.report.figures.scored_grid import grid_scores


def layers(scores, scale="absolute", class_index=1):
    return {layer.kind: layer for layer in map_layers(scores, class_index, "tumour", scale)}


def test_shares_are_told_relative_to_the_average_patch():
    scores = grid_scores()
    values, is_relative = attention_values(scores)
    assert is_relative
    assert values.mean() == pytest.approx(1)
    np.testing.assert_allclose(values / values.sum(), scores.attention_mean)
    found = layers(scores)
    np.testing.assert_allclose(found["attention_std"].values, 24 * scores.attention_std)
    assert "1 = average patch" in found["attention"].unit


def test_the_same_look_at_a_large_and_a_small_slide_is_the_same_number():
    small, large = (
        InstanceScores(np.tile([0.5, 1.5], n) / (2 * n), np.zeros(2 * n)) for n in (3, 40)
    )
    assert set(attention_values(small)[0].round(9)) == set(attention_values(large)[0].round(9))


def test_attention_that_is_no_share_stays_as_it_is():
    scores = grid_scores(shares=False)
    values, is_relative = attention_values(scores)
    assert not is_relative
    np.testing.assert_array_equal(values, scores.attention_mean)
    assert layers(scores)["attention"].unit == "attention, as the model gives it"


def test_evidence_is_the_margin_and_its_mean_is_the_slides():
    scores = grid_scores()
    e = scores.evidence_mean
    found = layers(scores, class_index=2)["evidence"].values
    np.testing.assert_allclose(found, 24 * (e[:, 2] - (e[:, 0] + e[:, 1]) / 2))
    logits = e.sum(axis=0)
    assert found.mean() == pytest.approx(logits[2] - (logits[0] + logits[1]) / 2)


@pytest.mark.parametrize("scale", ["rank", "minmax"])
def test_relative_scales_keep_the_sign_of_evidence(scale):
    scores = grid_scores()
    found = layers(scores, scale)
    evidence = scores.score("evidence", 1)
    size = np.abs(evidence)
    if scale == "rank":
        expected = (rankdata(size) - 1) / (len(size) - 1)
    else:
        expected = (size - size.min()) / (size.max() - size.min())
    np.testing.assert_allclose(found["evidence"].values, np.sign(evidence) * expected)
    assert found["attention"].values.min() == 0
    assert found["attention"].values.max() == 1
    assert all("slide" in layer.unit for layer in found.values())


def test_single_is_the_log_odds_of_the_class_whatever_the_size_of_the_slide():
    rng = np.random.default_rng(0)
    log_odds, spread, novelty = rng.normal(size=(24, 3)), rng.random((24, 3)), rng.random(24)
    scores = replace(
        grid_scores(), single_mean=log_odds, single_std=spread, single_prob=None, novelty=novelty
    )
    found = layers(scores, class_index=2)
    np.testing.assert_array_equal(found["single"].values, log_odds[:, 2])
    np.testing.assert_array_equal(found["single_std"].values, spread[:, 2])
    np.testing.assert_array_equal(found["novelty"].values, novelty)
    assert found["single"].is_signed
    assert not found["novelty"].is_signed
    ranked = layers(scores, "rank", class_index=2)["single"].values
    np.testing.assert_array_equal(np.sign(ranked[ranked != 0]), np.sign(log_odds[ranked != 0, 2]))
    limits = map_limits([(scores, 2)])
    assert limits.single == pytest.approx(np.quantile(np.abs(log_odds[:, 2]), 0.995), rel=0.05)
    assert limits.novelty == pytest.approx(novelty.max(), rel=0.05)


def test_some_scores_are_chosen_and_a_missing_one_is_named():
    scores = grid_scores()
    found = map_layers(scores, 1, "tumour", kinds=["evidence"])
    assert [layer.kind for layer in found] == ["evidence", "evidence_std"]
    with pytest.raises(PredictionError, match="score 'single', but these have none"):
        map_layers(scores, 1, "tumour", kinds=["attention", "single"])


def test_scores_that_are_not_finite_are_counted_and_left_out():
    novelty = np.ones(24)
    novelty[3] = np.inf
    single = np.zeros((24, 3))
    single[5, 1] = np.nan
    scores = replace(grid_scores(), single_mean=single, single_std=single * 0, novelty=novelty)
    assert num_without_score(scores) == 2
    assert np.isnan(finite_scores(scores).novelty).tolist() == [k == 3 for k in range(24)]


def test_layers_that_the_model_does_not_have_are_left_out():
    assert set(layers(grid_scores(deviation=0.0))) == {"attention", "evidence"}
    assert set(layers(grid_scores(evidence=False))) == {"attention", "attention_std"}
    assert set(layers(grid_scores(evidence=False, deviation=0.0))) == {"attention"}


def test_limits_are_shared_and_each_slide_counts_alike():
    # 99.9 % of all patches are of the one large slide; half of the slides' weight is not.
    high = InstanceScores(np.full(10, 0.9), np.full(10, 0.2))
    low = InstanceScores(np.full(10_000, 0.1), np.full(10_000, 0.1))
    limits = map_limits([(low, 0), (high, 0)])
    assert limits.attention == pytest.approx(0.9)
    assert limits.attention_std == pytest.approx(0.2)


def test_a_slide_of_one_patch_does_not_dim_the_others():
    def slide(num):
        weights = np.full((num, 1), 1 / num)
        return InstanceScores(
            weights[:, 0],
            0.1 * weights[:, 0],
            weights * [[-4.0, 4.0]],
            0.1 * weights * [[4.0, 4.0]],
        )

    alone, large = map_limits([(slide(1), 1)]), map_limits([(slide(1), 1), (slide(500), 1)])
    assert alone.evidence == large.evidence == pytest.approx(8)
    assert large.evidence_std == pytest.approx(0.8)


def test_limits_are_the_quantile_of_one_slide():
    scores = InstanceScores(np.linspace(0, 3, 10_001), np.zeros(10_001))
    assert map_limits([(scores, 0)]).attention == pytest.approx(3 * 0.995, rel=1e-3)


def test_limits_of_nothing_at_all_can_be_drawn():
    nothing = InstanceScores(np.zeros(4), np.zeros(4), np.zeros((4, 2)), np.zeros((4, 2)))
    limits = map_limits([(nothing, 1)])
    assert limits.of("attention") == limits.of("evidence") == 1
    assert map_limits([]).attention == 1


def test_one_patch_far_above_none_is_seen():
    scores = InstanceScores(np.r_[np.zeros(999), 0.7], np.zeros(1000))
    assert map_limits([(scores, 0)]).attention == pytest.approx(0.7)
