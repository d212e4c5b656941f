import csv
from dataclasses import replace

import numpy as np
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.evaluation import InstanceScores
from sgpmil.explanation.key_patches import contrasting_patches, key_patches, write_key_patches
from tests.evaluation import tables


def random_scores(num=200, seed=0, *, deviation=True, evidence=True):
    rng = np.random.default_rng(seed)
    attention = rng.gamma(0.5, size=num)
    attention /= attention.sum()
    logits = rng.normal(size=(num, 2))
    return InstanceScores(
        attention,
        attention * rng.uniform(0.1, 0.9, num) if deviation else np.zeros(num),
        attention[:, None] * logits if evidence else None,
        0.1 * attention[:, None] * np.abs(logits) if evidence else None,
        coords=rng.integers(0, 9999, (num, 2)) if evidence else None,
        patch_size=256,
        instance_labels=rng.integers(-1, 2, num),
    )


def numbers(patches):
    return [patch.patch for patch in patches]


def test_the_highest_come_first():
    scores = random_scores()
    found = key_patches(scores, 1, most=5)
    a, e = scores.attention_mean, scores.evidence_mean[:, 1] - scores.evidence_mean[:, 0]
    assert numbers(found["attention"]) == sorted(range(200), key=lambda k: -a[k])[:5]
    assert numbers(found["evidence"]) == sorted(range(200), key=lambda k: -e[k])[:5]
    assert [patch.rank for patch in found["attention"]] == [1, 2, 3, 4, 5]


def test_patches_that_tell_alone():
    rng = np.random.default_rng(4)
    log_odds = rng.normal(size=(200, 2))
    given = {"single_mean": log_odds, "single_std": np.ones((200, 2)), "novelty": rng.random(200)}
    scores = replace(random_scores(), **given)
    found = key_patches(scores, 1, most=5)
    best = sorted(range(200), key=lambda k: -log_odds[k, 1])
    assert numbers(found["single"]) == best[:5]
    first = found["single"][0]
    assert first.single == log_odds[best[0], 1]
    assert first.single_probability == pytest.approx(1 / (1 + np.exp(-first.single)))
    assert first.novelty == scores.novelty[best[0]]
    # With evidence, that says what is for and against; without it, the patch alone does.
    assert list(contrasting_patches(scores, 1)) == ["evidence", "against", "unsure"]
    bare = replace(random_scores(evidence=False, deviation=False), **given)
    contrast = contrasting_patches(bare, 1, most=3)
    assert numbers(contrast["single"]) == best[:3]
    assert numbers(contrast["against"]) == best[:-4:-1]
    negative = replace(scores, single_mean=-np.abs(log_odds))
    assert "single" not in key_patches(negative, 1)


def test_unsure_patches_are_looked_at_and_vary():
    scores = random_scores()
    a, s = scores.attention_mean, scores.attention_std
    high = [k for k in sorted(range(200), key=lambda k: -a[k])[:20] if a[k] > a.mean()]
    expected = sorted(high, key=lambda k: -s[k] / a[k])[:6]
    assert numbers(key_patches(scores, 0, most=6)["unsure"]) == expected
    # Neither the deviation alone nor the coefficient alone would have chosen them.
    assert expected != sorted(range(200), key=lambda k: -s[k])[:6]
    assert expected != sorted(range(200), key=lambda k: -s[k] / a[k])[:6]


def test_attention_below_the_average_is_not_high():
    attention = np.r_[np.full(2, 0.4), np.full(198, 0.2 / 198)]
    scores = InstanceScores(attention, 0.5 * attention)
    assert sorted(numbers(key_patches(scores, 0)["unsure"])) == [0, 1]
    flat = InstanceScores(np.full(50, 0.02), np.full(50, 0.01))
    assert "unsure" not in key_patches(flat, 0)


def test_kinds_that_there_are_not():
    assert set(key_patches(random_scores(deviation=False), 1)) == {"attention", "evidence"}
    assert set(key_patches(random_scores(evidence=False), 1)) == {"attention", "unsure"}
    against = InstanceScores(np.ones(3), np.zeros(3), np.array([[1.0, 0]] * 3), np.zeros((3, 2)))
    assert set(key_patches(against, 1)) == {"attention"}
    assert len(key_patches(against, 0)["evidence"]) == 3


def test_unknown_scores_come_last_and_infinite_ones_are_refused():
    attention = np.array([np.nan, 0.2, 0.8])
    found = key_patches(InstanceScores(attention, np.zeros(3)), 0, most=2)
    assert numbers(found["attention"]) == [2, 1]
    with pytest.raises(ExplanationError, match="infinite"):
        key_patches(InstanceScores(np.array([np.inf, 1.0]), np.zeros(2)), 0)


def test_the_table_holds_what_the_scores_do(tmp_path):
    scores = random_scores()
    found = key_patches(scores, 1, most=4)
    patches = [patch for group in found.values() for patch in group]
    write_key_patches(tmp_path / "a.csv", "slide, 1", patches)
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    for row in rows:
        k = int(row["patch"])
        assert row["slide_id"] == "slide, 1"
        assert (int(row["x"]), int(row["y"])) == tuple(scores.coords[k])
        assert float(row["attention_mean"]) == pytest.approx(scores.attention_mean[k], rel=1e-5)
        ratio = scores.attention_std[k] / scores.attention_mean[k]
        assert float(row["variation"]) == pytest.approx(ratio, rel=1e-5)
        assert float(row["evidence"]) == pytest.approx(scores.score("evidence", 1)[k], rel=1e-5)
        label = scores.instance_labels[k]
        assert row["instance_label"] == ("" if label < 0 else str(label))


def test_what_is_unknown_is_empty(tmp_path):
    scores = InstanceScores(np.array([0.0, 1.0]), np.zeros(2))
    (patches,) = key_patches(scores, 0).values()
    write_key_patches(tmp_path / "a.csv", "a", patches)
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["x"] + row["evidence"] + row["instance_label"] for row in rows] == ["", ""]
    assert [row["variation"] for row in rows] == ["0", ""]


@pytest.fixture
def scores():
    return tables.random_scores(40, 3, seed=2)


def margins(scores, c):
    """The evidence of a class less the mean of the others, written out."""
    evidence = scores.evidence_mean
    others = [k for k in range(evidence.shape[1]) if k != c]
    return evidence[:, c] - evidence[:, others].mean(axis=1)


def indices(patches):
    assert [patch.rank for patch in patches] == list(range(1, len(patches) + 1))
    return [patch.patch for patch in patches]


@pytest.mark.parametrize("c", [0, 1, 2])
def test_patches_are_the_extremes_of_the_evidence(scores, c):
    found = contrasting_patches(scores, c, most=4)
    values = margins(scores, c)
    assert indices(found["evidence"]) == sorted(range(40), key=lambda k: -values[k])[:4]
    assert indices(found["against"]) == sorted(range(40), key=lambda k: values[k])[:4]
    first = found["evidence"][0]
    assert first.corner == tuple(scores.coords[first.patch])
    assert first.evidence == pytest.approx(values[first.patch])
    ratio = scores.attention_std / scores.attention_mean
    high = sorted(range(40), key=lambda k: -scores.attention_mean[k])[:4]
    assert indices(found["unsure"]) == sorted(high, key=lambda k: -ratio[k])
    assert found["unsure"][0].variation == pytest.approx(max(ratio[k] for k in high))


def test_where_nothing_speaks_against_there_is_none(scores):
    high = np.abs(scores.evidence_mean) * np.array([1.0, 0.0, 0.0])
    found = contrasting_patches(replace(scores, evidence_mean=high), 0, most=4)
    assert len(found["evidence"]) == 4
    assert found["against"] == ()


def test_without_evidence_attention_chooses_and_nothing_is_against(scores):
    plain = replace(scores, evidence_mean=None, evidence_std=None)
    found = contrasting_patches(plain, 0, most=3)
    assert list(found) == ["attention", "unsure"]
    order = sorted(range(40), key=lambda k: -plain.attention_mean[k])[:3]
    assert indices(found["attention"]) == order


def test_a_deterministic_model_is_not_unsure(scores):
    plain = replace(
        scores, attention_std=np.zeros(40), evidence_std=np.zeros_like(scores.evidence_mean)
    )
    assert list(contrasting_patches(plain, 1)) == ["evidence", "against"]


def test_patches_that_nearly_coincide_are_shown_once(scores):
    # In a row, a quarter of a side apart: every second of them is half a side from the last.
    near = np.stack([64 * np.arange(40), np.zeros(40, dtype=int)], axis=1)
    evidence = np.zeros((40, 3))
    evidence[:, 0] = np.arange(40, 0, -1)
    attention = np.arange(40, 0, -1) / 820
    close = replace(scores, coords=near, evidence_mean=evidence, attention_mean=attention)
    found = contrasting_patches(close, 0, most=4)
    assert indices(found["evidence"]) == [0, 2, 4, 6]
    places = [patch.corner[0] for patch in found["unsure"]]
    assert min(np.diff(sorted(places))) >= 128
    plain = replace(close, evidence_mean=None, evidence_std=None)
    assert indices(contrasting_patches(plain, 0, most=3)["attention"]) == [0, 2, 4]
    # Without places nothing is known to coincide.
    unplaced = replace(close, coords=None)
    assert indices(contrasting_patches(unplaced, 0, most=3)["evidence"]) == [0, 1, 2]
