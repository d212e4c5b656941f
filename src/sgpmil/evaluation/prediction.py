"""What a model says of one slide."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.shapes import Float

__all__ = ["NamedSlide", "Prediction", "SlideName", "entropy"]

RANGE_TOLERANCE = 1e-6
"""How far a probability may leave [0, 1]: a single-precision softmax does, by rounding."""


@runtime_checkable
class NamedSlide(Protocol):
    """What a prediction takes over from a bag."""

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
    """What a model says of one slide.

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

    @property
    def predicted_class(self) -> int:
        """Class of the largest probability (the first of equal ones)."""
        return int(np.argmax(self.probs))

    def told(self, class_index: int, digits: int = 2) -> str:
        """Tell a class's probability, with its deviation where the model gives one.

        What would be rounded to certainty is told as what it is beyond.

        Example:
            >>> Prediction.from_samples("a", "a", None, np.array([[0.25, 0.75]])).told(1)
            '0.75'
            >>> Prediction.from_samples("a", "a", None, np.array([[0.002, 0.998]])).told(1)
            '>0.99'
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

        Args:
            slide_id: Name of the slide.
            case_id: Patient the slide belongs to.
            label: Class index, or None where unknown.
            prob_samples: Probabilities $p_s$ of each sample.
            instances: Scores of the instances.

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

        Args:
            bags: The slides.
            prob_samples: Probabilities of each slide and sample.
            instances: Scores of the instances of each slide.

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
    """A slide of which nothing else is at hand.

    Args:
        slide_id: Its name.
        case_id: Patient it belongs to.
        label: Class index, or None where unknown.
    """

    slide_id: str
    case_id: str
    label: int | None


def entropy(probs: Float[np.ndarray, "*batch C"]) -> Float[np.ndarray, "*batch"]:
    r"""Give the entropy $-\sum_c p_c \ln p_c$ in nats, with $0 \ln 0 = 0$.

    Args:
        probs: Distributions along the last axis.
    """
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
