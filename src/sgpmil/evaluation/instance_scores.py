"""What a model says of the instances of one slide."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.shapes import Float, Int

__all__ = ["InstanceScores", "ScoreKind"]

ScoreKind = Literal["attention", "evidence"]
"""`attention`: where the model looked. `evidence`: what an instance adds to a class's logit."""


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

    Raises:
        PredictionError: The arrays do not describe the same instances, or evidence comes
            without its standard deviation.
    """

    attention_mean: Float[np.ndarray, " N"]
    attention_std: Float[np.ndarray, " N"]
    evidence_mean: Float[np.ndarray, "N C"] | None = None
    evidence_std: Float[np.ndarray, "N C"] | None = None
    margin_std: Float[np.ndarray, "N C"] | None = None
    coords: Int[np.ndarray, "N 2"] | None = None
    patch_size: int | None = None
    instance_labels: Int[np.ndarray, " N"] | None = None

    def __post_init__(self) -> None:
        _check_instances(self)

    @property
    def num_instances(self) -> int:
        """Number of instances N."""
        return len(self.attention_mean)

    def score(self, kind: ScoreKind, class_index: int) -> Float[np.ndarray, " N"]:
        r"""Score the instances for one class.

        The evidence score is the margin of the class over the mean of the others,

        $$ m_{k,c} = e_{k,c} - \frac{1}{C-1} \sum_{c' \neq c} e_{k,c'}, $$

        because the softmax ignores a common shift of the logits: $e_{k,c}$ alone is not
        identified. Attention does not depend on the class.

        Args:
            kind: Which score.
            class_index: Class c.

        Raises:
            PredictionError: There is no evidence, or no such class.

        Example:
            >>> evidence = np.array([[0.0, 3.0, 1.0]])
            >>> scores = InstanceScores(np.ones(1), np.zeros(1), evidence, evidence)
            >>> scores.score("evidence", 1)
            array([2.5])
        """
        if kind == "attention":
            return self.attention_mean
        evidence, _ = self._evidence(kind, class_index)
        return _margin(evidence, class_index)

    def score_std(self, kind: ScoreKind, class_index: int) -> Float[np.ndarray, " N"]:
        r"""Give the posterior standard deviation of `score`.

        Where the classes' shares vary on their own, it is `margin_std`. Otherwise evidence is
        $e_{k,c} = w_k q_{k,c}$, with a random pooling weight $w_k \ge 0$ and a fixed
        $q_{k,c} = v_c \cdot h_k$. Its mean is $\bar w_k q_{k,c}$ and its standard deviation
        $\sigma_k |q_{k,c}|$, so $\operatorname{sign}(\bar e_{k,c}) \operatorname{std}(e_{k,c}) =
        \sigma_k q_{k,c}$ and, the margin being linear,

        $$ \operatorname{std}(m_{k,c}) = \Bigl| \sigma_k q_{k,c}
           - \frac{1}{C-1} \sum_{c' \neq c} \sigma_k q_{k,c'} \Bigr|. $$

        Args:
            kind: Which score.
            class_index: Class c.

        Raises:
            PredictionError: There is no evidence, or no such class.
        """
        if kind == "attention":
            return self.attention_std
        mean, std = self._evidence(kind, class_index)
        if self.margin_std is not None:
            return self.margin_std[:, class_index]
        return np.asarray(np.abs(_margin(np.sign(mean) * std, class_index)))

    def _evidence(
        self, kind: str, class_index: int
    ) -> tuple[Float[np.ndarray, "N C"], Float[np.ndarray, "N C"]]:
        if kind != "evidence":
            raise PredictionError(
                f"Expected the score 'attention' or 'evidence', but got '{kind}'. "
                "Choose one of the two."
            )
        if self.evidence_mean is None or self.evidence_std is None:
            raise PredictionError(
                "Expected scores with evidence, but this model gives none. Use attention instead."
            )
        num_classes = self.evidence_mean.shape[1]
        if not 0 <= class_index < num_classes:
            raise PredictionError(
                f"Expected a class between 0 and {num_classes - 1}, but got {class_index}. "
                "Choose a class that the model knows."
            )
        return self.evidence_mean, self.evidence_std


def _margin(values: Float[np.ndarray, "N C"], class_index: int) -> Float[np.ndarray, " N"]:
    own = values[:, class_index]
    num_others = max(1, values.shape[1] - 1)  # a single logit stands against zero
    return np.asarray(own - (values.sum(axis=1) - own) / num_others)


def _check_instances(scores: InstanceScores) -> None:
    num = scores.attention_mean.shape[0] if scores.attention_mean.ndim else 0
    num_classes = None if scores.evidence_mean is None else scores.evidence_mean.shape[-1:]
    evidence_shape = None if num_classes is None else (num, *num_classes)
    expected = {
        "attention_mean": (scores.attention_mean, (num,)),
        "attention_std": (scores.attention_std, (num,)),
        "evidence_mean": (scores.evidence_mean, evidence_shape),
        "evidence_std": (scores.evidence_std, evidence_shape),
        "margin_std": (scores.margin_std, None if scores.margin_std is None else evidence_shape),
        "coords": (scores.coords, None if scores.coords is None else (num, 2)),
        "instance_labels": (
            scores.instance_labels,
            None if scores.instance_labels is None else (num,),
        ),
    }
    for name, (array, shape) in expected.items():
        found = None if array is None else array.shape
        if found != shape:
            raise PredictionError(
                f"Expected '{name}' of shape {shape}, for the instances of 'attention_mean' and "
                f"the classes of 'evidence_mean', but got {found}. Take all from the same bag."
            )
