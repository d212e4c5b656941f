from dataclasses import replace

import numpy as np
import pytest

from sgpmil.report.pages.case_patches import patch_groups
from tests.evaluation.tables import random_scores


@pytest.fixture
def scores():
    return random_scores(40, 3, seed=2)


def margins(scores, c):
    """The evidence of a class less the mean of the others, written out."""
    evidence = scores.evidence_mean
    others = [k for k in range(evidence.shape[1]) if k != c]
    return evidence[:, c] - evidence[:, others].mean(axis=1)


@pytest.mark.parametrize("c", [0, 1, 2])
def test_patches_are_the_extremes_of_the_evidence(scores, c):
    chosen, against, unsure = patch_groups(scores, c, "x", most=4)
    values = margins(scores, c)
    assert [p.index for p in chosen.patches] == sorted(range(40), key=lambda k: -values[k])[:4]
    assert [p.index for p in against.patches] == sorted(range(40), key=lambda k: values[k])[:4]
    assert [p.mark for p in chosen.patches] == ["F1", "F2", "F3", "F4"]
    assert [p.mark for p in against.patches] == ["A1", "A2", "A3", "A4"]
    first = chosen.patches[0]
    assert first.corner == tuple(scores.coords[first.index])
    # In the units of the map: times the number of patches.
    told = float(first.score.split(" ± ")[0])
    assert told == pytest.approx(40 * values[first.index], rel=5e-3)
    assert first.score.startswith("+")
    assert against.patches[0].score.startswith("−")
    ratio = scores.attention_std / scores.attention_mean
    high = sorted(range(40), key=lambda k: -scores.attention_mean[k])[:4]
    assert [p.index for p in unsure.patches] == sorted(high, key=lambda k: -ratio[k])


def test_where_nothing_speaks_against_it_is_said(scores):
    high = np.abs(scores.evidence_mean) * np.array([1.0, 0.0, 0.0])
    chosen, against, _ = patch_groups(replace(scores, evidence_mean=high), 0, "x", most=4)
    assert len(chosen.patches) == 4
    assert (against.patches, against.none) == ((), "No patch speaks against “x”.")


def test_without_evidence_attention_chooses_and_nothing_is_against(scores):
    plain = replace(scores, evidence_mean=None, evidence_std=None)
    groups = patch_groups(plain, 0, "x", most=3)
    assert [group.kind for group in groups] == ["for", "unsure"]
    order = sorted(range(40), key=lambda k: -plain.attention_mean[k])[:3]
    assert [p.index for p in groups[0].patches] == order
    shares = replace(plain, attention_mean=plain.attention_mean / plain.attention_mean.sum())
    first = patch_groups(shares, 0, "x", most=1)[0].patches[0]
    assert first.score.startswith(f"{40 * shares.attention_mean.max():.2f} ± ")


def test_a_deterministic_model_is_not_unsure(scores):
    plain = replace(
        scores, attention_std=np.zeros(40), evidence_std=np.zeros_like(scores.evidence_mean)
    )
    groups = patch_groups(plain, 1, "x")
    assert [group.kind for group in groups] == ["for", "against"]
    assert "±" not in groups[0].patches[0].score


def test_patches_that_nearly_coincide_are_shown_once(scores):
    # In a row, a quarter of a side apart: every second of them is half a side from the last.
    near = np.stack([64 * np.arange(40), np.zeros(40, dtype=int)], axis=1)
    evidence = np.zeros((40, 3))
    evidence[:, 0] = np.arange(40, 0, -1)
    attention = np.arange(40, 0, -1) / 820
    close = replace(scores, coords=near, evidence_mean=evidence, attention_mean=attention)
    chosen, _, unsure = patch_groups(close, 0, "x", most=4)
    assert [p.index for p in chosen.patches] == [0, 2, 4, 6]
    assert [p.mark for p in chosen.patches] == ["F1", "F2", "F3", "F4"]
    places = [p.corner[0] for p in unsure.patches]
    assert min(np.diff(sorted(places))) >= 128
    plain = replace(close, evidence_mean=None, evidence_std=None)
    assert [p.index for p in patch_groups(plain, 0, "x", most=3)[0].patches] == [0, 2, 4]
    # Without places nothing is known to coincide.
    unplaced = replace(close, coords=None)
    assert [p.index for p in patch_groups(unplaced, 0, "x", most=3)[0].patches] == [0, 1, 2]
