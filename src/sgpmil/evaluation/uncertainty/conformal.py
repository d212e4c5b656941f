"""Prediction sets: classes that hold the label of a promised share of slides."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np

from sgpmil.bags.target import Target
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.shapes import Bool, Float, Int

ConformalMethod = Literal["lac", "aps"]
"""`lac`: least ambiguous sets, the smallest. `aps`: adaptive sets, larger for harder slides."""

_TOLERANCE = 1e-12
"""Amount by which rounding may lift a score above a threshold."""


@dataclass(frozen=True, slots=True, eq=False)
class PredictionSets:
    """The classes that each slide may be of.

    Args:
        members: Whether each class is in the set of each slide.
        was_empty: Whether the method itself gave the slide no class: it is less like a
            calibration slide of any class than the coverage asks for.
        target: Quantity that is predicted.
    """

    members: Bool[np.ndarray, "n C"]
    was_empty: Bool[np.ndarray, " n"]
    target: Target

    def __len__(self) -> int:
        return len(self.members)

    def names(self) -> tuple[tuple[str, ...], ...]:
        """Name the classes in the set of each slide, in the order of the classes."""
        names = np.array(self.target.names, dtype=object)
        return tuple(tuple(names[row]) for row in self.members)


@dataclass(frozen=True, slots=True, eq=False)
class ConformalPredictor:
    """Thresholds that calibration slides gave.

    Args:
        method: Kind of score.
        coverage: Promised share of slides whose set holds their label.
        thresholds: Largest score a class may have to be in a set; infinite where the
            calibration slides are too few.
        num_calibration: Number of calibration slides of each class.
        per_class: Whether the promise holds for each class on its own.
        target: Quantity that is predicted.
    """

    method: ConformalMethod
    coverage: float
    thresholds: Float[np.ndarray, " C"]
    num_calibration: tuple[int, ...]
    per_class: bool
    target: Target

    @property
    def note(self) -> str:
        """Note on classes with too few calibration slides, which are in every set."""
        if np.isfinite(self.thresholds).all():
            return ""
        needed = math.ceil(self.coverage / (1 - self.coverage) - 1e-9)
        begin = f"A coverage of {self.coverage:g} needs at least {needed} calibration slides"
        if not self.per_class:
            return (
                f"{begin}, but there are {sum(self.num_calibration)}: every set holds all classes."
            )
        few = ", ".join(
            f"{name} ({count})"
            for name, count, threshold in zip(
                self.target.names, self.num_calibration, self.thresholds, strict=True
            )
            if math.isinf(threshold)
        )
        return f"{begin} of every class, but there are fewer of {few}: every set holds them."

    def sets(
        self, table: PredictionTable, *, allow_empty: bool = False, seed: int | None = None
    ) -> PredictionSets:
        r"""Compute the set of each slide.

        With the threshold $q$, LAC takes the classes with $1 - p_c \le q$. APS orders the
        classes by decreasing probability; with $P_c$ the sum of the probabilities down to and
        including class c, it takes those with $P_c - p_c < q$: the most probable ones, to the
        first at which their sum reaches q. With a seed, it takes those with
        $P_c - u p_c \le q$, u uniform in [0, 1) a slide: smaller sets, which cover exactly the
        promised share, but which depend on chance.

        Args:
            table: Predictions of the same model.
            allow_empty: Whether a set may be empty. Otherwise it gets the most probable class,
                which only adds to the coverage.
            seed: Seed of the randomised APS; None for the deterministic one. LAC needs none.

        Raises:
            PredictionError: The classes are not those of the calibration slides.
        """
        self._check_classes(table)
        probs, thresholds = _normalised(table.probs), self.thresholds + _TOLERANCE
        if self.method == "lac":
            members = 1 - probs <= thresholds
        elif seed is not None:
            uniform = np.random.default_rng(seed).uniform(size=len(probs))
            members = _aps_scores(probs, uniform) <= thresholds
        else:
            # Where a class has no probability at all, P_c - p_c is P_c: it belongs to the set
            # when P_c ≤ q, as in the randomised form.
            whole, above = (_aps_scores(probs, np.full(len(probs), u)) for u in (0.0, 1.0))
            members = (above < self.thresholds) | (whole <= thresholds)
        was_empty = np.asarray(~members.any(axis=1))
        if not allow_empty:
            members[was_empty, probs[was_empty].argmax(axis=1)] = True
        return PredictionSets(members, was_empty, self.target)

    def _check_classes(self, table: PredictionTable) -> None:
        if table.target != self.target:
            raise PredictionError(
                f"Expected predictions of {self.target}, as of the calibration slides, but got "
                f"{table.target}. Calibrate with predictions of the same model."
            )


def conformal_method(name: str) -> ConformalMethod:
    """Check the name of a method.

    Raises:
        PredictionError: There is no such method.
    """
    if name == "lac":
        return "lac"
    if name == "aps":
        return "aps"
    raise PredictionError(
        f"Expected the conformal method 'lac' or 'aps', but got '{name}'. Choose one of the two."
    )


def fit_conformal(
    table: PredictionTable,
    coverage: float = 0.9,
    method: ConformalMethod = "lac",
    *,
    per_class: bool = False,
    seed: int = 0,
) -> ConformalPredictor:
    r"""Calibrate prediction sets on slides the model was not trained on.

    The scores of the calibration slides' own labels, $s_i = 1 - p_{i,y_i}$ (LAC) or
    $s_i = P_{i,y_i} - u_i p_{i,y_i}$ (APS, $u_i$ uniform), give the threshold `conformal_quantile`.
    A new slide's label y is in its set whenever $s(y) \le q$, so that

    $$ P(y \in \mathcal{C}) \ge 1 - \alpha $$

    if the new slide is exchangeable with the calibration slides: on average over calibration
    sets and slides, whatever the model. With `per_class`, each class has a threshold from its own
    slides, and the promise holds for each class on its own.

    Validation slides that chose the epoch are a little too easy for the model, so the coverage
    is then approximate; several slides of one patient, or slides of another hospital or scanner,
    break the exchangeability as well.

    Args:
        table: Predictions of the calibration slides; those without a label are left out.
        coverage: Promised share $1 - \alpha$ of slides whose set holds their label.
        method: Kind of score.
        per_class: Whether each class gets a threshold of its own.
        seed: Seed of $u_i$.

    Raises:
        PredictionError: No slide has a label, or the coverage is not between 0 and 1.
    """
    method = conformal_method(method)
    _check_coverage(coverage)
    known = table.labelled()
    if not len(known):
        raise PredictionError(
            f"Expected calibration slides with labels, but got none among {len(table)}. "
            "Add labels to the predictions."
        )
    probs, labels = _normalised(known.probs), known.labels
    if method == "lac":
        scores = 1 - probs
    else:
        scores = _aps_scores(probs, np.random.default_rng(seed).uniform(size=len(probs)))
    own = scores[np.arange(len(labels)), labels]
    classes = range(known.target.num_outputs)
    groups = [own[labels == c] for c in classes] if per_class else [own] * len(classes)
    return ConformalPredictor(
        method=method,
        coverage=coverage,
        thresholds=np.array([conformal_quantile(group, coverage) for group in groups]),
        num_calibration=tuple(int((labels == c).sum()) for c in classes),
        per_class=per_class,
        target=known.target,
    )


def conformal_quantile(scores: Float[np.ndarray, " n"], coverage: float) -> float:
    r"""Compute the $\lceil (n + 1)(1 - \alpha) \rceil$-th smallest score.

    Returns:
        The score; infinite where there are fewer than that many.

    Raises:
        PredictionError: The coverage is not between 0 and 1.

    Example:
        >>> conformal_quantile(np.arange(9.0), 0.9), conformal_quantile(np.arange(8.0), 0.9)
        (8.0, inf)
    """
    _check_coverage(coverage)
    # 100 · 0.55 is 55.00000000000001 in floating point, but the 55th score is meant.
    rank = max(1, math.ceil((len(scores) + 1) * coverage - 1e-9))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def _aps_scores(
    probs: Float[np.ndarray, "n C"], uniform: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n C"]:
    """Sum the probabilities down to and including each class, less a share u of its own."""
    order = np.argsort(-probs, axis=1, kind="stable")
    descending = np.take_along_axis(probs, order, axis=1)
    scores = np.minimum(descending.cumsum(axis=1), 1.0) - uniform[:, None] * descending
    rank: Int[np.ndarray, "n C"] = np.argsort(order, axis=1)
    return np.take_along_axis(scores, rank, axis=1)


def _normalised(probs: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    """Normalise the probabilities of a slide, which sum to 1 up to a rounding error."""
    clipped = np.clip(probs, 0.0, 1.0)
    return np.asarray(clipped / clipped.sum(axis=1, keepdims=True))


def _check_coverage(coverage: float) -> None:
    if not 0 < coverage < 1:
        raise PredictionError(
            f"Expected a coverage between 0 and 1, but got {coverage}. "
            "Pass the share of slides to cover, such as 0.9."
        )


@dataclass(frozen=True, slots=True, eq=False)
class SetMetrics:
    """Coverage and size of prediction sets on labelled slides, as counts that can be pooled.

    Args:
        method: Kind of score that made the sets.
        nominal: Promised coverage.
        target: Quantity that is predicted.
        class_slides: Number of slides of each class.
        class_covered: Number of them whose set holds their class.
        class_members: Number of classes in their sets, summed.
        num_empty: Number of slides to which the method itself gave no class.
        num_single: Number of slides whose set is one class.
    """

    method: ConformalMethod
    nominal: float
    target: Target
    class_slides: Int[np.ndarray, " C"]
    class_covered: Int[np.ndarray, " C"]
    class_members: Int[np.ndarray, " C"]
    num_empty: int
    num_single: int

    @property
    def num_slides(self) -> int:
        """Number of slides."""
        return int(self.class_slides.sum())

    @property
    def coverage(self) -> float:
        """Share of the slides whose set holds their label; NaN without slides."""
        return float(_ratio(self.class_covered.sum(), self.class_slides.sum()))

    @property
    def class_coverage(self) -> Float[np.ndarray, " C"]:
        """The same for the slides of each class; NaN for a class without slides."""
        return _ratio(self.class_covered, self.class_slides)

    @property
    def mean_size(self) -> float:
        """Mean number of classes in a set."""
        return float(_ratio(self.class_members.sum(), self.class_slides.sum()))

    @property
    def class_size(self) -> Float[np.ndarray, " C"]:
        """The same for the slides of each class."""
        return _ratio(self.class_members, self.class_slides)

    @property
    def share_empty(self) -> float:
        """Share of the slides to which the method itself gave no class."""
        return float(_ratio(np.array(self.num_empty), self.class_slides.sum()))

    @property
    def share_single(self) -> float:
        """Share of the slides whose set is one class: those that are decided."""
        return float(_ratio(np.array(self.num_single), self.class_slides.sum()))


def set_metrics(predictor: ConformalPredictor, table: PredictionTable) -> SetMetrics:
    """Measure the deterministic sets of a predictor, each of at least one class.

    Args:
        predictor: Predictor that makes the sets.
        table: Predictions of slides that did not calibrate it; those without a label are left
            out.

    Raises:
        PredictionError: The classes are not those of the calibration slides.
    """
    known = table.labelled()
    sets = predictor.sets(known)
    labels, num_outputs = known.labels, known.target.num_outputs
    covered = sets.members[np.arange(len(labels)), labels]
    sizes = sets.members.sum(axis=1)
    return SetMetrics(
        method=predictor.method,
        nominal=predictor.coverage,
        target=predictor.target,
        class_slides=np.bincount(labels, minlength=num_outputs),
        class_covered=np.bincount(labels[covered], minlength=num_outputs),
        class_members=np.bincount(np.repeat(labels, sizes), minlength=num_outputs),
        num_empty=int(sets.was_empty.sum()),
        num_single=int((sizes == 1).sum()),
    )


def pooled_set_metrics(folds: Sequence[SetMetrics]) -> SetMetrics:
    """Count the slides of several folds together.

    Args:
        folds: Metrics of sets made by one method, to one coverage, of the same classes.

    Raises:
        PredictionError: There are no folds, or they differ in these.
    """
    kinds = {(fold.method, fold.nominal, fold.target) for fold in folds}
    if len(kinds) != 1:
        raise PredictionError(
            f"Expected prediction sets of one method, coverage and list of classes, but got "
            f"{len(kinds)} different ones. Pool the folds of one experiment."
        )
    return reduce(_sum, folds)


def _sum(one: SetMetrics, other: SetMetrics) -> SetMetrics:
    return SetMetrics(
        method=one.method,
        nominal=one.nominal,
        target=one.target,
        class_slides=one.class_slides + other.class_slides,
        class_covered=one.class_covered + other.class_covered,
        class_members=one.class_members + other.class_members,
        num_empty=one.num_empty + other.num_empty,
        num_single=one.num_single + other.num_single,
    )


def _ratio(
    part: Int[np.ndarray, "*shape"] | np.int64, whole: Int[np.ndarray, "*shape"] | np.int64
) -> Float[np.ndarray, "*shape"]:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
