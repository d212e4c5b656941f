"""Layers of a slide's maps: scores in units that compare between slides, and their limits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from sgpmil.evaluation.prediction import SCORE_ARRAYS, InstanceScores, ScoreKind
from sgpmil.explanation.maps import ScaleKind, scaled
from sgpmil.shapes import Float

LayerKind = Literal[
    "attention", "attention_std", "evidence", "evidence_std", "single", "single_std", "novelty"
]

_SHARES_TOLERANCE = 1e-3
"""Largest distance from 1 of the sum of attention that counts as shares."""
_QUANTILE = 0.995
"""The few scores above this share the end of the colour scale, so that others have contrast."""
_STEPS = np.linspace(0, 1, 1001)
"""The distribution of a slide's scores is kept as these quantiles."""


@dataclass(frozen=True, slots=True, eq=False)
class MapLayer:
    """One score of a slide's patches, ready to be drawn.

    Args:
        kind: Kind of score.
        title: Name in words.
        unit: Unit of its numbers.
        values: The score of each patch.
    """

    kind: LayerKind
    title: str
    unit: str
    values: Float[np.ndarray, " N"]

    @property
    def is_signed(self) -> bool:
        """Return whether its sign has a meaning: for or against a class."""
        return self.kind in ("evidence", "single")


@dataclass(frozen=True, slots=True)
class MapLimits:
    """Upper ends of the colours: the lower ones are 0 or, where the sign counts, the negative.

    Args:
        attention: Of the attention.
        attention_std: Of its standard deviation.
        evidence: Of the absolute evidence.
        evidence_std: Of its standard deviation.
        single: Of the absolute log-odds of a patch alone.
        single_std: Of their standard deviation.
        novelty: Of the novelty.
    """

    attention: float
    attention_std: float
    evidence: float
    evidence_std: float
    single: float = 1.0
    single_std: float = 1.0
    novelty: float = 1.0

    def of(self, kind: LayerKind) -> float:
        """Give the limit of a kind of score."""
        return float(getattr(self, kind))


def attention_values(scores: InstanceScores) -> tuple[Float[np.ndarray, " N"], bool]:
    r"""Give the attention in a unit that slides of any size can be compared in.

    Attention that sums to one over the slide's N patches is their share in it, so that of
    a patch that is looked at like any other is 1/N, whatever that is. It becomes

    $$ N a_k, $$

    of which 1 is the average patch. Other attention (a sigmoid's) stays as the model gives it.

    Returns:
        The attention, and whether it is relative to the average patch.
    """
    factor = _attention_factor(scores)
    return scores.attention_mean * factor, factor != 1.0


def map_layers(
    scores: InstanceScores,
    class_index: int,
    class_name: str,
    scale: ScaleKind = "absolute",
    *,
    kinds: Sequence[ScoreKind] | None = None,
) -> tuple[MapLayer, ...]:
    r"""Give what can be drawn of a slide: its scores, and the deviations of these.

    On the absolute scale attention is as of `attention_values`. What a patch adds to the margin of
    the class's logit over the mean of the others' is multiplied by N, too, so that it does not
    shrink with the size of the slide: its mean over the patches is the slide's margin (less the
    bias),

    $$ \frac1N \sum_k N m_{k,c} = \ell_c - \frac{1}{C-1} \sum_{c' \neq c} \ell_{c'}. $$

    The single score is the log-odds of the class for a bag of the patch alone, which depends on no
    other patch; so does novelty. The scales `rank` and `minmax` are of the slide alone. Of a signed
    score, they scale the absolute value, and the sign is kept.

    Args:
        scores: Scores of the patches.
        class_index: Class that evidence and single are for.
        class_name: Name of that class.
        scale: Scale of the values.
        kinds: Scores to give; by default all that there are.

    Raises:
        PredictionError: A score in `kinds` is not there.

    Returns:
        The layers that the model has: without deviations where it is deterministic, and without
        the scores that it does not give.
    """
    attention, is_share = attention_values(scores)
    own = "attention × N   (1 = average patch)" if is_share else "attention, as the model gives it"
    layers = [
        MapLayer(
            "attention",
            "Attention, posterior mean" if scores.attention_std.any() else "Attention",
            _unit(own, scale),
            scaled(attention, scale),
        )
    ]
    if scores.attention_std.any():
        spread = scores.attention_std * _attention_factor(scores)
        layers.append(
            MapLayer(
                "attention_std",
                "Attention, posterior sd",
                _unit("sd of attention × N" if is_share else "sd of attention", scale),
                scaled(spread, scale),
            )
        )
    num = scores.num_instances
    if "evidence" in scores.kinds:
        mean, spread = (f("evidence", class_index) for f in (scores.score, scores.score_std))
        words = f"Evidence for {class_name}", "evidence × N   (− against, + for)", "evidence × N"
        layers += _signed_layers("evidence", num * mean, num * spread, words, scale)
    if "single" in scores.kinds:
        mean, spread = (f("single", class_index) for f in (scores.score, scores.score_std))
        words = f"Patch alone: {class_name}", "log-odds   (0 = 50 %, 2.2 = 90 %)", "log-odds"
        layers += _signed_layers("single", mean, spread, words, scale)
    if scores.novelty is not None:
        unit = _unit("novelty   (1: exceeded by 1 % of training patches)", scale)
        layers.append(
            MapLayer("novelty", "Unlike the training patches", unit, scaled(scores.novelty, scale))
        )
    if kinds is None:
        return tuple(layers)
    for kind in kinds:
        scores.score(kind, class_index)  # says why, where there is none
    return tuple(layer for layer in layers if layer.kind.removesuffix("_std") in kinds)


def _signed_layers(
    kind: Literal["evidence", "single"],
    mean: Float[np.ndarray, " N"],
    spread: Float[np.ndarray, " N"],
    words: tuple[str, str, str],
    scale: ScaleKind,
) -> Iterator[MapLayer]:
    """Give a score for and against a class and, where it has any, its deviation."""
    title, unit, quantity = words
    signed = np.sign(mean) * scaled(np.abs(mean), scale)
    yield MapLayer(kind, title, _unit(unit, scale, "± "), signed)
    if spread.any():
        of_spread: LayerKind = "evidence_std" if kind == "evidence" else "single_std"
        name = "Evidence" if kind == "evidence" else "Patch alone"
        unit = _unit(f"sd of {quantity}", scale)
        yield MapLayer(of_spread, f"{name}, posterior sd", unit, scaled(spread, scale))


def map_limits(slides: Iterable[tuple[InstanceScores, int]]) -> MapLimits:
    """Give limits that the maps of several slides share, so that a colour means the same on all.

    They are the 99.5th percentiles over the patches of all slides, on the absolute scale; each
    slide counts alike, however many patches it has.

    Args:
        slides: Scores of each slide, and the class that its maps are for.
    """
    found: dict[LayerKind, list[Float[np.ndarray, " N"]]] = {}
    for scores, class_index in slides:
        for layer in map_layers(scores, class_index, ""):
            values = np.abs(layer.values[np.isfinite(layer.values)])
            if len(values):
                found.setdefault(layer.kind, []).append(np.quantile(values, _STEPS))
    ends = {kind: _upper_end(np.concatenate(values)) for kind, values in found.items()}
    return MapLimits(**{kind: ends.get(kind, 1.0) for kind in get_args(LayerKind)})


def num_without_score(scores: InstanceScores) -> int:
    """Count the instances of which a score, or its deviation, is not finite."""
    is_finite = np.ones(scores.num_instances, dtype=bool)
    for values in _score_arrays(scores).values():
        is_finite &= np.isfinite(values).reshape(len(values), -1).all(axis=1)
    return int((~is_finite).sum())


def finite_scores(scores: InstanceScores) -> InstanceScores:
    """Replace infinite scores by NaN, which maps leave out."""
    if not num_without_score(scores):
        return scores
    finite: dict[str, Any] = {name: _finite(a) for name, a in _score_arrays(scores).items()}
    return replace(scores, **finite)


def _score_arrays(scores: InstanceScores) -> dict[str, Any]:
    found = {name: getattr(scores, name) for name in SCORE_ARRAYS}
    return {name: array for name, array in found.items() if array is not None}


def _finite(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.where(np.isfinite(values), values, np.nan)


def _attention_factor(scores: InstanceScores) -> float:
    known = scores.attention_mean[np.isfinite(scores.attention_mean)]
    total = float(known.sum())
    is_share = abs(total - 1) < _SHARES_TOLERANCE
    # Of shares of which some are missing, less than one is left; one NaN must not change the unit.
    if len(known) < scores.num_instances:
        is_share = total < 1 + _SHARES_TOLERANCE
    return float(scores.num_instances) if is_share else 1.0


def _unit(own: str, scale: ScaleKind, sign: str = "") -> str:
    if scale == "absolute":
        return own
    within = "rank within the slide" if scale == "rank" else "least to greatest of the slide"
    return f"{sign}{within}"


def _upper_end(values: Float[np.ndarray, " N"]) -> float:
    end = float(np.quantile(values, _QUANTILE))
    # Where nearly all are 0, the highest value alone is to be seen.
    return end if end > 0 else float(values.max()) or 1.0
