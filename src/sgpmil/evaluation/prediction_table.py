"""Predictions of a set of slides, by slide and by patient."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sgpmil.bags.target import ClassTarget, Target
from sgpmil.errors import LabelError, PredictionError
from sgpmil.evaluation.prediction import RANGE_TOLERANCE, SCORE_ARRAYS, Prediction, entropy
from sgpmil.evaluation.prediction_columns import prediction_columns
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.notebook import MOST_ROWS, counted, html_table, shortened
from sgpmil.shapes import Float, Int

if TYPE_CHECKING:
    import pandas as pd

    from sgpmil.evaluation.uncertainty.decisions import Decision

_FEW_CLASSES = 6
"""Classes whose probabilities a notebook shows side by side."""

SUM_TOLERANCE = 1e-3
"""Largest difference from 1 of the sum of a slide's probabilities."""


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """The predictions of a set of slides, for one target.

    Args:
        predictions: One prediction a slide.
        target: Quantity that is predicted.
        provenance: Model, settings and slides that they come from, where known.

    Raises:
        PredictionError: A slide occurs twice, a distribution is not one, or a label is not
            among the classes.

    Example:
        >>> from sgpmil.bags.target import ClassTarget
        >>> one = Prediction.from_samples("a", "a", None, np.array([[0.2, 0.8]]))
        >>> table = PredictionTable((one,), ClassTarget(("normal", "tumour")))
        >>> len(table), len(table.labelled())
        (1, 0)
    """

    predictions: tuple[Prediction, ...]
    target: Target
    provenance: PredictionProvenance | None = None

    def __post_init__(self) -> None:
        num_outputs = self.target.num_outputs
        for prediction in self.predictions:
            if prediction.probs.shape != (num_outputs,):
                raise PredictionError(
                    f"Expected {num_outputs} probabilities for '{prediction.slide_id}', one a "
                    f"class, but got shape {prediction.probs.shape}. Name every class."
                )
        check_predictions(
            self.probs, [p.label for p in self.predictions], self.slide_ids, "the predictions"
        )

    def __len__(self) -> int:
        return len(self.predictions)

    def __repr__(self) -> str:
        num = sum(p.label is not None for p in self.predictions)
        return (
            f"PredictionTable({counted(len(self), 'slide')}, {num} with a label; "
            f"{shortened(self.class_names)})"
        )

    def _repr_html_(self) -> str:
        classes = range(self.num_classes) if self.num_classes <= _FEW_CLASSES else ()
        rows = [
            (
                p.slide_id,
                "–" if p.label is None else self.target.decode(p.label),
                self.target.decode(int(predicted)),
                *(p.probability_text(c, 3) for c in classes),
                p.entropy,
            )
            for p, predicted in zip(
                self.predictions[:MOST_ROWS], self.predicted[:MOST_ROWS], strict=True
            )
        ]
        names = [f"p {self.class_names[c]}" for c in classes]
        columns = ["slide", "label", "predicted", *names, "entropy"]
        return html_table(repr(self), columns, rows, num_rows=len(self))

    def to_pandas(self, decisions: Sequence["Decision"] = ()) -> "pd.DataFrame":
        """Return the predictions as a pandas DataFrame, a row a slide.

        The columns are those of ``predictions.csv``: ``slide_id``, ``case_id``, ``label`` and
        ``predicted`` by name, ``p_<class>`` and ``std_<class>``, ``entropy``,
        ``expected_entropy`` and ``mutual_information``; ``novel_share``, ``novelty_p``,
        ``disagreement`` and ``seen`` where known; ``prediction_set`` and ``defer`` of decisions.

        Args:
            decisions: Decisions on these slides, in their order.

        Raises:
            PredictionError: The decisions are on other slides.

        Example:
            >>> from sgpmil.bags.target import ClassTarget
            >>> one = Prediction.from_samples("a", "a", None, np.array([[0.25, 0.75]]))
            >>> table = PredictionTable((one,), ClassTarget(("normal", "tumour")))
            >>> table.to_pandas()[["predicted", "p_tumour"]].values.tolist()
            [['tumour', 0.75]]
        """
        import pandas as pd

        return pd.DataFrame(prediction_columns(self, decisions))

    def instances_to_pandas(self, slide_id: str) -> "pd.DataFrame":
        """Return the scores of one slide's instances as a pandas DataFrame, a row an instance.

        The columns are those of `InstanceScores.to_pandas`, with classes by their names.

        Raises:
            PredictionError: There is no such slide, or it has no scores.
        """
        found = next((p for p in self.predictions if p.slide_id == slide_id), None)
        if found is None or found.instances is None:
            what = "which is not among them" if found is None else "which has no scores"
            raise PredictionError(
                f"Expected one of the {len(self)} slides, with scores of its instances, but got "
                f"'{slide_id}', {what}. Check its spelling, or predict with instances."
            )
        return found.instances.to_pandas(self.class_names)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class."""
        return self.target.names

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.target.num_outputs

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Name of each slide."""
        return tuple(prediction.slide_id for prediction in self.predictions)

    @cached_property
    def probs(self) -> Float[np.ndarray, "n C"]:
        """Probability of each class for each slide."""
        return self._matrix([prediction.probs for prediction in self.predictions])

    @cached_property
    def std(self) -> Float[np.ndarray, "n C"]:
        """Posterior standard deviation of each probability."""
        return self._matrix([prediction.std for prediction in self.predictions])

    @property
    def predicted(self) -> Int[np.ndarray, " n"]:
        """Predicted label of each slide."""
        return self.target.predicted(self.probs)

    @cached_property
    def labels(self) -> Int[np.ndarray, " n"]:
        """Label of each slide.

        Raises:
            PredictionError: A slide has none.
        """
        labels = [prediction.label for prediction in self.predictions]
        known = [label for label in labels if label is not None]
        if len(known) < len(labels):
            raise PredictionError(
                f"Expected a label for every slide, but {len(labels) - len(known)} of "
                f"{len(labels)} have none. Take the labelled slides alone with .labelled()."
            )
        found = np.asarray(known, dtype=np.int64)
        found.setflags(write=False)
        return found

    def labelled(self) -> "PredictionTable":
        """Keep the slides with a label."""
        kept = tuple(p for p in self.predictions if p.label is not None)
        # Nothing is lost by sharing: a table is never changed.
        return self if len(kept) == len(self) else replace(self, predictions=kept)

    def ordered(self, names: Sequence[str] | None = None) -> "PredictionTable":
        """Return the same predictions of ordered classes.

        Args:
            names: The classes from the lowest to the highest; by default a known order of them, or
                that of the numbers.

        Raises:
            LabelError: The names are not those of the classes, or no order of them is known.
        """
        target = ClassTarget.of(self.target.names, names, ordinal=True)
        if target.num_outputs != self.num_classes:
            raise LabelError(
                f"Expected an order of the {self.num_classes} classes "
                f"{', '.join(self.target.names)}, but got {target.num_outputs} names. "
                "Name each once."
            )
        columns = [self.target.names.index(name) for name in target.names]
        predictions = tuple(_of_columns(p, columns) for p in self.predictions)
        return replace(self, predictions=predictions, target=target)

    def _matrix(self, rows: Sequence[Float[np.ndarray, " C"]]) -> Float[np.ndarray, "n C"]:
        found = np.asarray(rows, dtype=np.float64).reshape(len(rows), self.target.num_outputs)
        found.setflags(write=False)
        return found


def _of_columns(prediction: Prediction, columns: Sequence[int]) -> Prediction:
    """Put the numbers of the classes into another order."""
    if list(columns) == list(range(len(columns))):
        return prediction
    scores = prediction.instances
    if scores is not None:
        arrays = ((name, getattr(scores, name)) for name in SCORE_ARRAYS)
        by_class = {n: a[:, columns] for n, a in arrays if a is not None and a.ndim == 2}
        scores = replace(scores, **by_class)
    return replace(
        prediction,
        label=None if prediction.label is None else columns.index(prediction.label),
        probs=prediction.probs[columns],
        std=prediction.std[columns],
        instances=scores,
    )


def check_predictions(
    probs: Float[np.ndarray, "n C"],
    labels: Sequence[int | None],
    slide_ids: Sequence[str],
    where: str,
) -> None:
    """Check the columns of a table of predictions.

    Raises:
        PredictionError: A slide occurs twice or has no name, a distribution is not one, or a
            label is not among the classes.
    """
    _check_slide_ids(slide_ids, where)
    _check_distributions(probs, slide_ids, where)
    num_outputs = probs.shape[1]
    for slide_id, label in zip(slide_ids, labels, strict=True):
        if label is not None and not 0 <= label < num_outputs:
            raise PredictionError(
                f"Expected labels between 0 and {num_outputs - 1} in {where}, but got {label} "
                f"for '{slide_id}'. Number the classes as the probabilities are."
            )


def _check_slide_ids(slide_ids: Sequence[str], where: str) -> None:
    seen: set[str] = set()
    for row, slide_id in enumerate(slide_ids):
        if not slide_id:
            raise PredictionError(
                f"Expected a name for every slide in {where}, but row {row} has none. Fill it in."
            )
        if slide_id in seen:
            raise PredictionError(
                f"Expected every slide once in {where}, but got '{slide_id}' twice. "
                "Keep one row a slide."
            )
        seen.add(slide_id)


def _check_distributions(
    probs: Float[np.ndarray, "n C"], slide_ids: Sequence[str], where: str
) -> None:
    def refuse(bad: Int[np.ndarray, " k"], expected: str, what_to_do: str) -> None:
        if len(bad):
            row = int(bad[0])
            raise PredictionError(
                f"Expected {expected} in {where}, but got {probs[row].tolist()} for "
                f"'{slide_ids[row]}' ({len(bad)} of {len(probs)} slides). {what_to_do}"
            )

    finite = np.isfinite(probs).all(axis=1)
    refuse(np.flatnonzero(~finite), "a number for every probability", "Predict these slides again.")
    outside = (probs < -RANGE_TOLERANCE) | (probs > 1 + RANGE_TOLERANCE)
    refuse(
        np.flatnonzero(outside.any(axis=1)),
        "probabilities between 0 and 1",
        "Write probabilities, not logits.",
    )
    refuse(
        np.flatnonzero(np.abs(probs.sum(axis=1) - 1) > SUM_TOLERANCE),
        "probabilities that sum to 1",
        "Write the softmax over all classes, with more than two decimals.",
    )


def patient_ids(table: PredictionTable) -> tuple[str, ...]:
    """Name the patient of each slide: its case, or the slide itself where that is blank."""
    return tuple(prediction.case_id or prediction.slide_id for prediction in table.predictions)


def without_patients(table: PredictionTable) -> PredictionTable:
    """Treat each slide as its own patient, for example where the cases are placeholders."""
    slides = tuple(replace(p, case_id=p.slide_id) for p in table.predictions)
    return replace(table, predictions=slides)


def by_patient(table: PredictionTable) -> PredictionTable:
    r"""Give each patient one prediction: the mean of the probabilities of the slides.

    $$ p = \frac{1}{K} \sum_k p_k, \qquad
       \operatorname{var}(p) = \frac{1}{K^2} \sum_{k,l} \operatorname{cov}(p_k, p_l) $$

    over the patient's K slides. The slides share the weights of one model, so their
    probabilities vary together over its posterior; the deviations of the single slides do not
    show by how much. The standard deviation, the expected entropy and the mutual information
    of a patient with several slides are therefore NaN, as unknown. A patient with one slide
    keeps all of that slide's. The entropy is that of the mean probabilities.

    A patient's label is that of the slides which have one. Patients come in the order of their
    first slides, named by the case (by the slide where that is blank), without scores of
    instances where there are several slides.

    Raises:
        PredictionError: Two slides of a patient have different labels.

    Example:
        >>> from sgpmil.bags.target import ClassTarget
        >>> slides = [
        ...     Prediction.from_samples("a1", "anna", 1, np.array([[0.5, 0.5]])),
        ...     Prediction.from_samples("a2", "anna", None, np.array([[0.25, 0.75]])),
        ... ]
        >>> patients = by_patient(PredictionTable(tuple(slides), ClassTarget(("n", "t"))))
        >>> patients.slide_ids, patients.labels, patients.probs
        (('anna',), array([1]), array([[0.375, 0.625]]))
    """
    slides_of: dict[str, list[Prediction]] = {}
    for patient, prediction in zip(patient_ids(table), table.predictions, strict=True):
        slides_of.setdefault(patient, []).append(prediction)
    patients = tuple(_patient(name, slides, table.target) for name, slides in slides_of.items())
    return replace(table, predictions=patients)


def _patient(name: str, slides: Sequence[Prediction], target: Target) -> Prediction:
    label = _label(name, slides, target)
    if len(slides) == 1:
        return replace(slides[0], slide_id=name, case_id=name)
    probs = np.mean([slide.probs for slide in slides], axis=0)
    return Prediction(
        slide_id=name,
        case_id=name,
        label=label,
        probs=probs,
        std=np.full(len(probs), math.nan),
        entropy=float(entropy(probs)),
        expected_entropy=math.nan,
        mutual_information=math.nan,
    )


def _label(name: str, slides: Sequence[Prediction], target: Target) -> int | None:
    known = [(slide.label, slide.slide_id) for slide in slides if slide.label is not None]
    for label, slide_id in known[1:]:
        if label != known[0][0]:
            raise PredictionError(
                f"Expected one label a patient, but patient '{name}' has "
                f"'{target.decode(known[0][0])}' ('{known[0][1]}') and '{target.decode(label)}' "
                f"('{slide_id}'). Correct the labels or the case_id column, or evaluate by slide."
            )
    return known[0][0] if known else None
