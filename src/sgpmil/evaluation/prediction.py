"""Predictions of one slide and of its instances."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast, runtime_checkable

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_columns import ENSEMBLE, MEASURES, NOVELTY
from sgpmil.notebook import counted, html_table
from sgpmil.shapes import Float, Int

if TYPE_CHECKING:
    import pandas as pd

ScoreKind = Literal["attention", "evidence", "single", "novelty"]
"""A score of instances; `SCORES` says what each means."""


@dataclass(frozen=True, slots=True)
class ScoreDefinition:
    """What a score of instances means. Files, tables, maps and metrics read this definition.

    Args:
        array: Field of `InstanceScores` that holds it.
        short_name: Name at the head of a narrow column.
        is_of_class: Whether each class has its own value.
        finds_class: Whether it is to find the instances that make a slide's class, so that it is
            measured against the labels of instances.
        meaning: Its meaning in a few words.
        when_missing: Why scores may lack it, and what to do.
    """

    array: str
    short_name: str
    is_of_class: bool
    finds_class: bool
    meaning: str
    when_missing: str


SCORES: Mapping[ScoreKind, ScoreDefinition] = {
    "attention": ScoreDefinition(
        "attention_mean", "att.", False, True, "where the model looked", "Predict the slides again."
    ),
    "evidence": ScoreDefinition(
        "evidence_mean",
        "ev.",
        True,
        True,
        "the share of a patch in a class's logit",
        "This model gives none. Use attention or single instead.",
    ),
    "single": ScoreDefinition(
        "single_mean",
        "single",
        True,
        True,
        "the log-odds that the model gives a class for a bag of the patch alone",
        "An earlier version wrote them without. Predict the slides again (sgpmil predict).",
    ),
    "novelty": ScoreDefinition(
        "novelty",
        "novelty",
        False,
        False,
        "how unlike the training patches a patch is; 1 is the level that 1 % of them exceed",
        "The model keeps no training patches to compare with, or an earlier version wrote the "
        "scores. Train again, and predict the slides again.",
    ),
}
"""Every score of instances, in the order of columns, layers and options."""

CLASS_SCORES: tuple[ScoreKind, ...] = tuple(k for k, found in SCORES.items() if found.finds_class)
"""The scores that are to find the instances that make a slide's class."""

Seen = Literal["train", "validation", "patient", "calibration", ""]
"""Part that a model saw a slide in: as `Prediction.seen`."""

SCORE_ARRAYS = (
    *("attention_mean", "attention_std", "evidence_mean", "evidence_std", "margin_std"),
    *("single_mean", "single_std", "single_prob", "novelty"),
)
"""Fields of `InstanceScores` that hold a number, or one a class, of each instance."""


@dataclass(frozen=True, slots=True, eq=False)
class InstanceScores:
    """Scores of the instances of one slide, with their posterior spread.

    Args:
        attention_mean: Posterior mean of each instance's attention.
        attention_std: Posterior standard deviation of each instance's attention.
        evidence_mean: Mean share of each instance in each class's logit, where the model's
            classifier is linear in the pooled embedding.
        evidence_std: Standard deviation of that share.
        margin_std: Standard deviation of each class's share less the mean of the others', where
            it does not follow from `evidence_std` (see `score_std`).
        coords: Top-left corner of each instance in level-0 pixels (x, y).
        patch_size: Side of an instance in level-0 pixels.
        instance_labels: Class of each instance where known; negative where unknown.
        single_mean: Posterior mean of the log-odds of each class for a bag of the instance alone.
        single_std: Standard deviation of those log-odds.
        single_prob: Posterior mean of each class's probability for such a bag, where it does not
            follow from the log-odds (see `single_probability`).
        novelty: How unlike the training instances each instance is; 1 is the level that 1 % of
            the training instances exceed.

    Raises:
        PredictionError: The arrays do not describe the same instances, or a score comes without
            its standard deviation.
    """

    attention_mean: Float[np.ndarray, " N"]
    attention_std: Float[np.ndarray, " N"]
    evidence_mean: Float[np.ndarray, "N C"] | None = None
    evidence_std: Float[np.ndarray, "N C"] | None = None
    margin_std: Float[np.ndarray, "N C"] | None = None
    coords: Int[np.ndarray, "N 2"] | None = None
    patch_size: int | None = None
    instance_labels: Int[np.ndarray, " N"] | None = None
    single_mean: Float[np.ndarray, "N C"] | None = None
    single_std: Float[np.ndarray, "N C"] | None = None
    single_prob: Float[np.ndarray, "N C"] | None = None
    novelty: Float[np.ndarray, " N"] | None = None

    def __post_init__(self) -> None:
        _check_instances(self)

    def __repr__(self) -> str:
        return f"InstanceScores({counted(self.num_instances, 'instance')}: {', '.join(self.kinds)})"

    @property
    def num_instances(self) -> int:
        """Number of instances N."""
        return len(self.attention_mean)

    def to_pandas(self, class_names: Sequence[str] | None = None) -> "pd.DataFrame":
        """Return the scores as a pandas DataFrame, a row an instance.

        Columns: ``patch`` (its number in the bag), ``x``, ``y`` and ``side`` where known, the
        scores by class (`sgpmil.evaluation.instance_columns.instance_columns`), and
        ``instance_label`` where known.

        Args:
            class_names: Name of each class; their numbers where not given.

        Raises:
            PredictionError: Two columns would have one name, or the names are not those of the
                classes.
        """
        from sgpmil.evaluation.instance_columns import instance_frame

        leading = self.evidence_mean if self.evidence_mean is not None else self.single_mean
        num_classes = 0 if leading is None else leading.shape[1]
        names = [str(c) for c in range(num_classes)] if class_names is None else list(class_names)
        if num_classes and len(names) != num_classes:
            raise PredictionError(
                f"Expected {num_classes} names of classes, as the scores have, but got "
                f"{len(names)}. Name every class."
            )
        return instance_frame(self, names)

    @property
    def kinds(self) -> tuple[ScoreKind, ...]:
        """The scores that there are."""
        return tuple(k for k, found in SCORES.items() if getattr(self, found.array) is not None)

    @property
    def best_kind(self) -> ScoreKind:
        """Score of a class that says most about it: evidence, else single, else attention."""
        ranked: tuple[ScoreKind, ...] = ("evidence", "single", "attention")
        return next(kind for kind in ranked if kind in self.kinds)

    def score(self, kind: ScoreKind, class_index: int) -> Float[np.ndarray, " N"]:
        r"""Score the instances for one class.

        The evidence score is the margin of the class over the mean of the others,

        $$ m_{k,c} = e_{k,c} - \frac{1}{C-1} \sum_{c' \neq c} e_{k,c'}, $$

        because the softmax ignores a common shift of the logits: $e_{k,c}$ alone is not
        identified. The single score is the class's log-odds for a bag of the instance alone.
        Attention and novelty do not depend on the class.

        Raises:
            PredictionError: There is no such score, or no such class.

        Example:
            >>> evidence = np.array([[0.0, 3.0, 1.0]])
            >>> scores = InstanceScores(np.ones(1), np.zeros(1), evidence, evidence)
            >>> scores.score("evidence", 1)
            array([2.5])
        """
        values = self._values(kind, class_index)
        if kind == "evidence":
            return _margin(values, class_index)
        return values[:, class_index] if values.ndim == 2 else values

    def score_std(self, kind: ScoreKind, class_index: int) -> Float[np.ndarray, " N"]:
        r"""Compute the posterior standard deviation of `score`; that of novelty is 0.

        Where the classes' shares vary on their own, that of the evidence is `margin_std`. Otherwise
        evidence is $e_{k,c} = w_k q_{k,c}$, with a random pooling weight $w_k \ge 0$ and a fixed
        $q_{k,c} = v_c \cdot h_k$. Its mean is $\bar w_k q_{k,c}$ and its standard deviation
        $\sigma_k |q_{k,c}|$, so $\operatorname{sign}(\bar e_{k,c}) \operatorname{std}(e_{k,c}) =
        \sigma_k q_{k,c}$ and, the margin being linear,

        $$ \operatorname{std}(m_{k,c}) = \Bigl| \sigma_k q_{k,c}
           - \frac{1}{C-1} \sum_{c' \neq c} \sigma_k q_{k,c'} \Bigr|. $$

        Raises:
            PredictionError: There is no such score, or no such class.
        """
        mean = self._values(kind, class_index)
        if kind == "attention":
            return self.attention_std
        if kind == "single" and self.single_std is not None:
            return self.single_std[:, class_index]
        if self.evidence_std is None or kind != "evidence":
            return np.zeros_like(self.attention_std)
        if self.margin_std is not None:
            return self.margin_std[:, class_index]
        return np.asarray(np.abs(_margin(np.sign(mean) * self.evidence_std, class_index)))

    def single_probability(self, class_index: int) -> Float[np.ndarray, " N"]:
        r"""Give the probability of a class for a bag of each instance alone.

        It is the posterior mean of the samples' probabilities, which is $\sigma$ of the log-odds
        where there is one sample.

        Raises:
            PredictionError: There is no single score, or no such class.
        """
        from scipy.special import expit

        log_odds = self.score("single", class_index)
        return expit(log_odds) if self.single_prob is None else self.single_prob[:, class_index]

    def _values(self, kind: str, class_index: int) -> Float[np.ndarray, "..."]:
        found = SCORES.get(cast("ScoreKind", kind))
        if found is None:
            raise PredictionError(
                f"Expected the score {listed_scores()}, but got '{kind}'. Choose one of these."
            )
        values: np.ndarray | None = getattr(self, found.array)
        if values is None:
            raise PredictionError(
                f"Expected instances with the score '{kind}', but these have none. "
                f"{found.when_missing}"
            )
        if values.ndim == 2 and not 0 <= class_index < values.shape[1]:
            raise PredictionError(
                f"Expected a class between 0 and {values.shape[1] - 1}, but got {class_index}. "
                "Choose a class that the model knows."
            )
        return values


def listed_scores(kinds: Sequence[ScoreKind] = tuple(SCORES)) -> str:
    """List the names of scores in words.

    Example:
        >>> listed_scores()
        "'attention', 'evidence', 'single' or 'novelty'"
    """
    *first, last = (f"'{kind}'" for kind in kinds)
    return f"{', '.join(first)} or {last}"


def _margin(values: Float[np.ndarray, "N C"], class_index: int) -> Float[np.ndarray, " N"]:
    own = values[:, class_index]
    num_others = max(1, values.shape[1] - 1)  # a single logit stands against zero
    return np.asarray(own - (values.sum(axis=1) - own) / num_others)


def _check_instances(scores: InstanceScores) -> None:
    num = scores.attention_mean.shape[0] if scores.attention_mean.ndim else 0
    leading = next((a for a in (scores.evidence_mean, scores.single_mean) if a is not None), None)
    of_class = (num, *(() if leading is None else leading.shape[-1:]))
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("attention_mean", "attention_std", "novelty", "instance_labels"), (num,)),
        **dict.fromkeys(("evidence_mean", "evidence_std", "margin_std"), of_class),
        **dict.fromkeys(("single_mean", "single_std", "single_prob"), of_class),
        "coords": (num, 2),
    }
    required = {"attention_mean", "attention_std"}
    for kind in ("evidence", "single"):
        if (
            getattr(scores, f"{kind}_mean") is not None
            or getattr(scores, f"{kind}_std") is not None
        ):
            required |= {f"{kind}_mean", f"{kind}_std"}
    for name, shape in shapes.items():
        array = getattr(scores, name)
        found = None if array is None else array.shape
        if found != shape and (found is not None or name in required):
            raise PredictionError(
                f"Expected '{name}' of shape {shape}, for the instances of 'attention_mean' and "
                f"the classes of 'evidence_mean', but got {found}. Take all from the same bag."
            )


RANGE_TOLERANCE = 1e-6
"""Amount by which a probability may leave [0, 1]: a softmax in float32 does, by rounding."""


@runtime_checkable
class NamedSlide(Protocol):
    """Fields that a prediction takes over from a bag."""

    @property
    def slide_id(self) -> str:
        """Name of the slide."""
        ...

    @property
    def case_id(self) -> str:
        """Patient the slide belongs to."""
        ...

    @property
    def label(self) -> int | None:
        """Class index, or None where unknown."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """A model's prediction of one slide.

    Args:
        slide_id: Name of the slide.
        case_id: Patient the slide belongs to.
        label: Class index, or None where unknown.
        probs: Probability of each class.
        std: Posterior standard deviation of each probability; NaN where unknown.
        entropy: Entropy of the mean probabilities: all of the uncertainty, in nats.
        expected_entropy: Mean entropy of the samples: the part that lies in the data.
        mutual_information: Their difference: the part that lies in the model.
        instances: Scores of the instances.
        novel_share: Share of the instances that are more novel than all but one in a hundred
            training instances; NaN where unknown.
        novelty_p: p-value of the slide against the training slides: small where it is unlike
            them; NaN where unknown.
        seen: Part that the model saw the slide in before: ``train``; ``patient`` where another
            slide of its patient was trained on; ``validation``; ``calibration`` where it, or
            another slide of its patient, calibrated sets and deferral; or empty where it did not or
            nobody knows.
        disagreement: Part of the mutual information that lies between several models
            (`sgpmil.evaluation.ensemble`); NaN of one model.
    """

    slide_id: str
    case_id: str
    label: int | None
    probs: Float[np.ndarray, " C"]
    std: Float[np.ndarray, " C"]
    entropy: float
    expected_entropy: float
    mutual_information: float
    instances: InstanceScores | None = None
    novel_share: float = math.nan
    novelty_p: float = math.nan
    disagreement: float = math.nan
    seen: Seen = ""

    def __repr__(self) -> str:
        best = self.predicted_class
        label = "" if self.label is None else f", label {self.label}"
        return (
            f"Prediction('{self.slide_id}': class {best} {self.probability_text(best, 3)}{label}, "
            f"entropy {self.entropy:.3f})"
        )

    def _repr_html_(self) -> str:
        rows = [(c, p, s) for c, (p, s) in enumerate(zip(self.probs, self.std, strict=True))]
        label = "" if self.label is None else f", label {self.label}"
        numbers = {name: getattr(self, name) for name in (*MEASURES, *NOVELTY, *ENSEMBLE)}
        known = [f"{k.replace('_', ' ')} {v:.3f}" for k, v in numbers.items() if not math.isnan(v)]
        return html_table(
            f"Prediction of {self.slide_id}{label}",
            ["class", "probability", "std"],
            [(c, float(p), float(s)) for c, p, s in rows],
            ", ".join(known),
        )

    @property
    def predicted_class(self) -> int:
        """Class of the largest probability (the first of equal ones)."""
        return int(np.argmax(self.probs))

    def probability_text(self, class_index: int, digits: int = 2) -> str:
        """Format a class's probability, with its standard deviation where the model gives one.

        A probability that would be rounded to 0 or 1 is written as a bound: ``>0.99``.

        Example:
            >>> one = Prediction.from_samples("a", "a", None, np.array([[0.002, 0.998]]))
            >>> one.probability_text(1), one.probability_text(1, digits=3)
            ('>0.99', '0.998')
        """
        least = 10.0**-digits
        prob, std = float(self.probs[class_index]), float(self.std[class_index])
        text = f"{prob:.{digits}f}"
        if prob > 1 - least / 2:
            text = f">{1 - least:.{digits}f}"
        elif prob < least / 2:
            text = f"<{least:.{digits}f}"
        if not np.nansum(self.std) > 0:
            return text
        return f"{text} ± {f'<{least:.{digits}f}' if std < least / 2 else f'{std:.{digits}f}'}"

    @staticmethod
    def from_samples(
        slide_id: str,
        case_id: str,
        label: int | None,
        prob_samples: Float[np.ndarray, "S C"],
        instances: InstanceScores | None = None,
    ) -> "Prediction":
        r"""Summarise the samples of the posterior.

        $$ p = \frac{1}{S} \sum_s p_s, \qquad
           I = H(p) - \frac{1}{S} \sum_s H(p_s) \ge 0, \qquad H(p) = -\sum_c p_c \ln p_c $$

        The standard deviation divides by S - 1 and is 0 for a single sample.

        Raises:
            PredictionError: There is no sample, or one is not a distribution.

        Example:
            >>> Prediction.from_samples("a", "a", 1, np.array([[0.2, 0.8], [0.4, 0.6]])).probs
            array([0.3, 0.7])
        """
        samples = np.asarray(prob_samples, dtype=np.float64)
        if samples.ndim != 2 or samples.size == 0:
            raise PredictionError(
                f"Expected the probabilities of '{slide_id}' as a matrix (samples, classes), "
                f"but got shape {samples.shape}. Pass one row a sample."
            )
        named = SlideName(slide_id, case_id, label)
        return Prediction.from_batch([named], samples[None], [instances])[0]

    @staticmethod
    def from_batch(
        bags: Sequence["NamedSlide"],
        prob_samples: Float[np.ndarray, "B S C"],
        instances: Sequence[InstanceScores | None] | None = None,
    ) -> list["Prediction"]:
        """Summarise the samples of several slides at once; see `from_samples`.

        Raises:
            PredictionError: A sample is not a distribution.
        """
        samples = np.asarray(prob_samples, dtype=np.float64)
        _check_samples(samples, bags)
        probs = samples.mean(axis=1)
        several = samples.shape[1] > 1
        std = samples.std(axis=1, ddof=1) if several else np.zeros_like(probs)
        total, expected = entropy(probs), entropy(samples).mean(axis=1)
        information = np.maximum(0.0, total - expected)
        return [
            Prediction(
                slide_id=bag.slide_id,
                case_id=bag.case_id,
                label=bag.label,
                probs=probs[b],
                std=std[b],
                entropy=float(total[b]),
                expected_entropy=float(expected[b]),
                mutual_information=float(information[b]),
                instances=None if instances is None else instances[b],
            )
            for b, bag in enumerate(bags)
        ]


@dataclass(frozen=True, slots=True)
class SlideName:
    """Name, patient and label of a slide.

    Args:
        slide_id: Its name.
        case_id: Patient it belongs to.
        label: Class index, or None where unknown.
    """

    slide_id: str
    case_id: str
    label: int | None


def entropy(probs: Float[np.ndarray, "*batch C"]) -> Float[np.ndarray, "*batch"]:
    r"""Compute the entropy $-\sum_c p_c \ln p_c$ in nats, with $0 \ln 0 = 0$."""
    logs = np.log(np.where(probs > 0, probs, 1.0))
    return np.asarray(-(probs * logs).sum(axis=-1))


def _check_samples(samples: Float[np.ndarray, "B S C"], bags: Sequence[NamedSlide]) -> None:
    valid = np.isfinite(samples) & (np.abs(samples - 0.5) <= 0.5 + RANGE_TOLERANCE)
    if not valid.all():
        first = tuple(np.argwhere(~valid)[0])
        raise PredictionError(
            f"Expected probabilities between 0 and 1 for '{bags[first[0]].slide_id}', "
            f"but got {samples[first]}. Pass probabilities, not logits."
        )
