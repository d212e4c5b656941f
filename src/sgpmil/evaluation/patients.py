"""Slides of the same patient: who they are, and what is predicted of them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction, entropy
from sgpmil.evaluation.prediction_table import PredictionTable

__all__ = ["by_patient", "patient_ids", "without_patients"]


def patient_ids(table: PredictionTable) -> tuple[str, ...]:
    """Name the patient of each slide: its case, or the slide itself where that is blank.

    Args:
        table: Predictions.
    """
    return tuple(prediction.case_id or prediction.slide_id for prediction in table.predictions)


def without_patients(table: PredictionTable) -> PredictionTable:
    """Take each slide for its own patient, as where the cases are placeholders.

    Args:
        table: Predictions.
    """
    return PredictionTable(
        tuple(replace(p, case_id=p.slide_id) for p in table.predictions), table.class_names
    )


def by_patient(table: PredictionTable) -> PredictionTable:
    r"""Give each patient one prediction: the mean of the probabilities of the slides.

    $$ p = \frac{1}{K} \sum_k p_k, \qquad
       \operatorname{var}(p) = \frac{1}{K^2} \sum_{k,l} \operatorname{cov}(p_k, p_l) $$

    over the patient's K slides. The slides share the weights of one model, so their
    probabilities vary together over its posterior; by how much, the deviations of the single
    slides do not tell. The standard deviation, the expected entropy and the mutual information
    of a patient with several slides are therefore NaN, as unknown. A patient with one slide
    keeps all of that slide's. The entropy is that of the mean probabilities.

    A patient's label is that of the slides which have one. Patients come in the order of their
    first slides, named by the case (by the slide where that is blank), without scores of
    instances where there are several slides.

    Args:
        table: Predictions of slides.

    Raises:
        PredictionError: Two slides of a patient have different labels.

    Example:
        >>> slides = [
        ...     Prediction.from_samples("a1", "anna", 1, np.array([[0.5, 0.5]])),
        ...     Prediction.from_samples("a2", "anna", None, np.array([[0.25, 0.75]])),
        ... ]
        >>> patients = by_patient(PredictionTable(tuple(slides), ("normal", "tumour")))
        >>> patients.slide_ids, patients.labels, patients.probs
        (('anna',), array([1]), array([[0.375, 0.625]]))
    """
    slides_of: dict[str, list[Prediction]] = {}
    for patient, prediction in zip(patient_ids(table), table.predictions, strict=True):
        slides_of.setdefault(patient, []).append(prediction)
    return PredictionTable(
        tuple(_patient(name, slides, table.class_names) for name, slides in slides_of.items()),
        table.class_names,
    )


def _patient(name: str, slides: Sequence[Prediction], class_names: tuple[str, ...]) -> Prediction:
    label = _label(name, slides, class_names)
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


def _label(name: str, slides: Sequence[Prediction], class_names: tuple[str, ...]) -> int | None:
    known = [(slide.label, slide.slide_id) for slide in slides if slide.label is not None]
    for label, slide_id in known[1:]:
        if label != known[0][0]:
            raise PredictionError(
                f"Expected one label a patient, but patient '{name}' has "
                f"'{class_names[known[0][0]]}' ('{known[0][1]}') and '{class_names[label]}' "
                f"('{slide_id}'). Correct the labels or the case_id column, or evaluate by slide."
            )
    return known[0][0] if known else None
