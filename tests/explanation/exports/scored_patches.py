"""Scores that the tests of all exports share."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.evaluation.prediction import InstanceScores

CLASSES = ("normal", 'tumour "G3", ü')
"""Names with characters that CSV and JSON must quote."""


def scored(num: int = 60, side: int | None = 512, seed: int = 0) -> InstanceScores:
    """Give scores in single precision over many orders of magnitude, some of them unknown."""
    rng = np.random.default_rng(seed)
    evidence = (rng.normal(size=(num, 2)) * 10.0 ** rng.integers(-9, 4, (num, 1))).astype("f4")
    mean = rng.random(num).astype("f4")
    mean[3], evidence[5, 0] = np.nan, np.inf
    labels = rng.integers(-1, 2, num)
    labels[0] = -1
    return InstanceScores(
        attention_mean=mean,
        attention_std=(rng.random(num) * 1e-6).astype("f4"),
        evidence_mean=evidence,
        evidence_std=np.abs(evidence),
        margin_std=np.abs(evidence) + 1,
        single_mean=rng.normal(size=(num, 2)).astype("f4"),
        single_std=rng.random((num, 2)).astype("f4"),
        single_prob=rng.dirichlet(np.ones(2), num).astype("f4"),
        novelty=rng.random(num).astype("f4"),
        coords=rng.integers(-3, 200, (num, 2)) * 256 + 17,
        patch_size=side,
        instance_labels=labels,
    )


def read_strictly(path: Path) -> dict[str, Any]:
    """Read JSON as the standard has it: without NaN, and without a name twice in an object."""

    def constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        assert len(found) == len(pairs)
        return found

    text = path.read_text(encoding="utf-8")
    return json.loads(text, parse_constant=constant, object_pairs_hook=unique)
