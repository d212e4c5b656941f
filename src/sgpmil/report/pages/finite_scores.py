"""Scores of patches that are not finite: how many there are, and the rest of them."""

from dataclasses import replace

import numpy as np

from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.shapes import Float

__all__ = ["num_without_score", "without_infinite"]


def num_without_score(scores: InstanceScores) -> int:
    """Count the instances whose attention or evidence, or a deviation of it, is not finite.

    Args:
        scores: Scores of a slide's instances.
    """
    is_finite = np.isfinite(scores.attention_mean) & np.isfinite(scores.attention_std)
    for values in (scores.evidence_mean, scores.evidence_std):
        if values is not None:
            is_finite &= np.isfinite(values).all(axis=1)
    return int((~is_finite).sum())


def without_infinite(scores: InstanceScores) -> InstanceScores:
    """Give scores whose infinite values are NaN, which maps leave out.

    Args:
        scores: Scores of a slide's instances.
    """
    if not num_without_score(scores):
        return scores
    evidence, spread = scores.evidence_mean, scores.evidence_std
    return replace(
        scores,
        attention_mean=_finite(scores.attention_mean),
        attention_std=_finite(scores.attention_std),
        evidence_mean=None if evidence is None else _finite(evidence),
        evidence_std=None if spread is None else _finite(spread),
        margin_std=None if scores.margin_std is None else _finite(scores.margin_std),
    )


def _finite(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.where(np.isfinite(values), values, np.nan)
