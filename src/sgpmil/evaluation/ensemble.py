r"""Predictions of several models of one slide, such as those of a run's folds, as one.

The posterior of the ensemble is the mixture of the models' posteriors. With the probabilities
$p_k$ and standard deviations $s_k$ of $K$ models,

$$ p = \frac1K \sum_k p_k, \qquad
   s^2 = \frac1K \sum_k s_k^2 + \frac{1}{K - 1} \sum_k (p_k - p)^2, \qquad
   D = H(p) - \frac1K \sum_k H(p_k). $$

$D$ is the *disagreement*, the part of the mutual information that lies between the models: 0 where
all give the same probabilities, whatever these are.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import InstanceScores, Prediction, entropy
from sgpmil.shapes import Float


def mixture(predictions: Sequence[Prediction]) -> Prediction:
    """Mix the predictions of several models of one slide.

    The share of novel instances is the mean; the p-value is twice the mean, which is a p-value
    however the models' depend on each other (Rüschendorf, 1982).

    Args:
        predictions: A prediction of each model.

    Raises:
        PredictionError: There is none, or they are of different slides or numbers of classes.
    """
    if not predictions:
        raise PredictionError("Expected the predictions of at least one model, but got none.")
    first = predictions[0]
    if len({(p.slide_id, len(p.probs)) for p in predictions}) > 1:
        raise PredictionError(
            f"Expected predictions of one slide by models of the same classes, but got those of "
            f"{', '.join(sorted({p.slide_id for p in predictions}))}."
        )
    if len(predictions) == 1:
        return first
    each = np.stack([p.probs for p in predictions])
    probs = each.mean(0)
    whole = float(entropy(probs))
    expected = float(np.mean([p.expected_entropy for p in predictions]))
    return replace(
        first,
        probs=probs,
        std=_spread(each, np.stack([p.std for p in predictions])),
        entropy=whole,
        expected_entropy=expected,
        mutual_information=max(0.0, whole - expected),
        disagreement=max(0.0, whole - float(entropy(each).mean())),
        novel_share=float(np.mean([p.novel_share for p in predictions])),
        novelty_p=float(np.minimum(1.0, 2 * np.mean([p.novelty_p for p in predictions]))),
        instances=_mixed_scores([p.instances for p in predictions]),
    )


def _spread(
    means: Float[np.ndarray, "..."], stds: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Standard deviation of a mixture: within the models, and between them."""
    return np.asarray(np.sqrt(np.square(stds).mean(0) + means.var(0, ddof=1)))


def _mixed_scores(scores: Sequence[InstanceScores | None]) -> InstanceScores | None:
    """Mix scores of instances; a score that one of the models lacks is left out."""
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return None

    def values(name: str) -> Any:
        found = [getattr(score, name) for score in known]
        return None if any(value is None for value in found) else np.stack(found)

    mixed: dict[str, Any] = {}
    for kind in ("attention", "evidence", "single"):
        means, stds = values(f"{kind}_mean"), values(f"{kind}_std")
        mixed[f"{kind}_mean"] = None if means is None else means.mean(0)
        mixed[f"{kind}_std"] = None if stds is None else _spread(means, stds)
    novelty = values("novelty")
    mixed["novelty"] = None if novelty is None else novelty.mean(0)
    mixed["margin_std"] = mixed["single_prob"] = None
    if mixed["evidence_mean"] is not None:
        margins = [
            _spread(
                np.stack([score.score("evidence", c) for score in known]),
                np.stack([score.score_std("evidence", c) for score in known]),
            )
            for c in range(mixed["evidence_mean"].shape[1])
        ]
        mixed["margin_std"] = np.stack(margins, axis=1)
    if mixed["single_mean"] is not None:
        alone = [
            np.mean([score.single_probability(c) for score in known], axis=0)
            for c in range(mixed["single_mean"].shape[1])
        ]
        mixed["single_prob"] = np.stack(alone, axis=1)
    return replace(known[0], **mixed)
