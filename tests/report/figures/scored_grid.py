"""Scores of patches that lie on a grid."""

import numpy as np

from sgpmil.evaluation import InstanceScores

SIDE = 512


def grid_scores(
    columns=6, rows=4, *, deviation=0.3, evidence=True, shares=True, seed=0, origin=(1024, 512)
):
    """Attention that sums to one (or not), and evidence of three classes."""
    rng = np.random.default_rng(seed)
    num = columns * rows
    attention = rng.gamma(0.7, size=num) + 1e-3
    attention = attention / attention.sum() if shares else attention / attention.max()
    logits = rng.normal(size=(num, 3))
    number = np.arange(num)
    coords = np.stack([number % columns, number // columns], axis=1) * SIDE + np.array(origin)
    return InstanceScores(
        attention_mean=attention,
        attention_std=deviation * attention * rng.uniform(0.5, 1.5, size=num),
        evidence_mean=attention[:, None] * logits if evidence else None,
        evidence_std=deviation * attention[:, None] * np.abs(logits) if evidence else None,
        coords=coords,
        patch_size=SIDE,
        instance_labels=np.arange(num) % 2,
    )
