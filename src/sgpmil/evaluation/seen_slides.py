"""Slides that a model has seen in training: measuring them would flatter it."""

import warnings
from dataclasses import replace

from sgpmil.bags.seen_slides import SeenSlides
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable


class SeenSlidesWarning(UserWarning):
    """Some of the slides that are measured were trained on."""


def mark_seen(prediction: Prediction, seen: SeenSlides, digest: str) -> Prediction:
    """Note in a prediction whether its slide, or another of its patient, was seen.

    Args:
        prediction: The prediction.
        seen: Slides that the model has seen.
        digest: Digest of the slide's bag (`BagDataset.slide_digests`).
    """
    slide_id, case_id = prediction.slide_id, prediction.case_id
    return replace(prediction, seen=seen.part(slide_id, case_id, digest, len(prediction.probs)))


def without_seen(
    table: PredictionTable, source: str, *, keep: bool = False, stacklevel: int = 2
) -> PredictionTable:
    """Leave out slides that the model was trained on, or others of their patients; warn of them.

    Slides that validated the training stay, with a warning.

    Args:
        table: Predictions.
        source: Their origin, for the message.
        keep: Whether to keep the slides, and only warn.
        stacklevel: Level of the caller that the warning names.

    Raises:
        PredictionError: The model was trained on all of them.
    """
    chose = sum(p.seen == "validation" for p in table.predictions)
    validated = (
        f"{chose} of {len(table)} slides of {source} validated the training, which may have chosen "
        "its epoch by them."
        if chose
        else ""
    )
    known = [p for p in table.predictions if p.seen in ("train", "patient")]
    if not known:
        if chose:
            warnings.warn(validated, SeenSlidesWarning, stacklevel=stacklevel + 1)
        return table
    cases = [p.case_id for p in known if p.seen == "patient"]
    num_patients = len(set(cases))
    patients = f"{num_patients} patient{'s' if num_patients > 1 else ''} who were trained on"
    text = f"{len(known) - len(cases)} of {len(table)} slides of {source} were trained on"
    if len(cases) == len(known):
        text = f"{len(cases)} of {len(table)} slides of {source} are of {patients}"
    elif cases:
        text += f" and {len(cases)} more are of {patients}"
    if keep:
        warnings.warn(
            f"{text}: results are too good. {validated}".rstrip(),
            SeenSlidesWarning,
            stacklevel=stacklevel + 1,
        )
        return table
    if len(known) == len(table):
        has_labels = any(p.label is not None for p in table.predictions)
        unlabelled = "" if has_labels else " To be measured they need labels, too (`labels`)."
        raise PredictionError(
            f"Expected slides that the model has not seen, but {text}, so none is left. "
            "Evaluate the run itself, where each slide is judged by a fold that has not seen it; "
            f"predict other slides; or measure these with `keep_seen=True`.{unlabelled}"
        )
    warnings.warn(
        f"{text}: left out. `keep_seen=True` measures them, too. {validated}".rstrip(),
        SeenSlidesWarning,
        stacklevel=stacklevel + 1,
    )
    kept = tuple(p for p in table.predictions if p.seen not in ("train", "patient"))
    return replace(table, predictions=kept)
