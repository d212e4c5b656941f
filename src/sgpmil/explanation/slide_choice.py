"""Test slides of a run: chosen to be explained, chosen as examples, and listed in a table."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.bags.labels import clean_slide_id
from sgpmil.bags.tables import listed, sheet_text
from sgpmil.bags.target import Target
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.runs.material import RunMaterial

_TOP = 10
"""Patches of highest attention of which the table counts the positive ones."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenSlide:
    """A test slide, with the fold that tested it.

    Args:
        fold: The fold.
        prediction: Prediction of the fold's model.
        name: Name of its files.
    """

    fold: TestedFold
    prediction: Prediction
    name: str

    @property
    def slide_id(self) -> str:
        """Name of the slide."""
        return self.prediction.slide_id


@dataclass(frozen=True, slots=True)
class ExampleSlides:
    """Slides that show where a model is right, wrong and uncertain.

    Args:
        best: The surest right prediction of each class; without labels, the surest of each.
        worst: The surest wrong predictions.
        uncertain: The predictions of the largest entropy.
        disputed: The predictions of the largest disagreement; none of a single model.
    """

    best: tuple[ChosenSlide, ...]
    worst: tuple[ChosenSlide, ...]
    uncertain: tuple[ChosenSlide, ...]
    disputed: tuple[ChosenSlide, ...] = ()


def choose_slides(
    material: RunMaterial,
    *,
    only: Sequence[str] = (),
    folds: Sequence[str] = (),
    most: int | None = None,
) -> tuple[ChosenSlide, ...]:
    """Choose test slides, the least certain first.

    Raises:
        ExplanationError: The run has no such slide or fold.
    """
    names = [fold.name for fold in material.folds]
    unknown = [name for name in folds if name not in names]
    if unknown:
        raise ExplanationError(
            f"Expected folds among {', '.join(names)}, which are done, but got '{unknown[0]}'. "
            "Choose one of these."
        )
    strangers = [slide_id for slide_id in only if slide_id not in material.slide_ids]
    if strangers:
        raise ExplanationError(
            f"Expected test slides of {material.path}, but got {listed(strangers)}. "
            f"{near_slides(strangers[0], material.slide_ids)}"
        )
    chosen = [
        one
        for one in _tested_slides(material)
        if (not folds or one.fold.name in folds) and (not only or one.slide_id in only)
    ]
    chosen.sort(key=lambda one: (-one.prediction.entropy, one.slide_id))
    return tuple(chosen[:most])


def near_slides(name: str, slide_ids: Collection[str]) -> str:
    """Name the slides that a wrong name may mean, in a sentence.

    Example:
        >>> near_slides("IMG01.svs", ["img01", "img10", "other"])
        "Did you mean 'img01'?"
        >>> near_slides("a", ["img01", "img10"])
        "Its slides are 'img01', 'img10'."
    """
    same = [s for s in slide_ids if _plain_name(s) == _plain_name(name)]
    close = sorted(same) or get_close_matches(name, sorted(slide_ids), n=3)
    if close:
        return f"Did you mean {' or '.join(repr(one) for one in close)}?"
    return f"Its slides are {listed(sorted(slide_ids))}."


def _plain_name(name: str) -> str:
    return clean_slide_id(name).casefold()


def example_slides(material: RunMaterial, most: int = 3) -> ExampleSlides:
    """Choose slides that show where the model is right, wrong and uncertain.

    Among predictions of equal probability (to two digits), the slide with more patches comes
    first: it shows more. A slide that several folds tested appears once.
    """
    tested = _tested_slides(material)
    labelled = [one for one in tested if one.prediction.label is not None]
    right = [one for one in labelled if one.prediction.predicted_class == one.prediction.label]
    wrong = [one for one in labelled if one.prediction.predicted_class != one.prediction.label]
    surest = sorted(right if labelled else tested, key=_sureness, reverse=True)
    best: list[ChosenSlide] = []
    for class_index in range(material.target.num_outputs):
        own = [one for one in surest if one.prediction.predicted_class == class_index]
        best += own[:1]
    return ExampleSlides(
        best=_once(best, len(best)),
        worst=_once(sorted(wrong, key=lambda one: -one.prediction.probs.max()), most),
        uncertain=_once(sorted(tested, key=lambda one: -one.prediction.entropy), most),
        disputed=_once(
            sorted(
                (one for one in tested if one.prediction.disagreement > 0),  # not where unknown
                key=lambda one: -one.prediction.disagreement,
            ),
            most,
        ),
    )


def evidence_class(prediction: Prediction, target: Target, wanted: str | None = None) -> int:
    """Choose the class that the evidence map of a slide is for.

    Args:
        prediction: Prediction of the slide.
        target: Quantity that is predicted.
        wanted: Name of the class; by default the second of two classes and, of more, the
            predicted one.

    Raises:
        ExplanationError: There is no such class.
    """
    if wanted is None:
        return target.ranked[0] if len(target.ranked) == 1 else prediction.predicted_class
    if wanted not in target.names:
        raise ExplanationError(
            f"Expected a class among {', '.join(target.names)}, but got '{wanted}'. "
            "Choose one of these."
        )
    return target.names.index(wanted)


def write_slide_list(path: Path, material: RunMaterial, folds: Sequence[str] = ()) -> None:
    """Write a row per test slide as CSV, the least certain first; unknown values are empty.

    Uncertainty is the entropy of the mean probabilities; that of several models together also has
    their disagreement. Where the labels of all patches are
    known, the table counts the positive ones, among all and among the ten of highest attention.

    Args:
        path: File to write; replaced whole where it exists.
        material: The run.
        folds: Folds to list; all by default.
    """
    names, is_ensemble = material.target.names, material.is_ensemble
    rows = []
    for one in choose_slides(material, folds=folds):
        prediction = one.prediction
        predicted, label = prediction.predicted_class, prediction.label
        rows.append(
            {
                "slide_id": prediction.slide_id,
                "case_id": prediction.case_id,
                "fold": one.fold.name,
                "label": "" if label is None else names[label],
                "predicted": names[predicted],
                "correct": "" if label is None else str(predicted == label).lower(),
                "probability": _number(prediction.probs[predicted]),
                "std": _number(prediction.std[predicted]),
                "entropy": _number(prediction.entropy),
                "expected_entropy": _number(prediction.expected_entropy),
                "mutual_information": _number(prediction.mutual_information),
                **({"disagreement": _number(prediction.disagreement)} if is_ensemble else {}),
                **_patch_counts(prediction.instances),
            }
        )
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(sheet_text(list(rows[0]), [row.values() for row in rows]))


def _tested_slides(material: RunMaterial) -> list[ChosenSlide]:
    counts = Counter(prediction.slide_id for _, prediction in material.predictions())
    return [
        ChosenSlide(
            fold,
            prediction,
            # A slide that several folds tested has files of each.
            prediction.slide_id
            if counts[prediction.slide_id] == 1
            else f"{prediction.slide_id}.fold-{fold.name}",
        )
        for fold, prediction in material.predictions()
    ]


def _sureness(one: ChosenSlide) -> tuple[float, int]:
    scores = one.prediction.instances
    num_patches = 0 if scores is None else scores.num_instances
    return round(float(one.prediction.probs.max()), 2), num_patches


def _once(slides: Sequence[ChosenSlide], most: int) -> tuple[ChosenSlide, ...]:
    first: dict[str, ChosenSlide] = {}
    for one in slides:
        first.setdefault(one.slide_id, one)
    return tuple(first.values())[:most]


def _patch_counts(scores: InstanceScores | None) -> dict[str, str]:
    counts = {"patches": "", "positive_patches": "", f"positive_in_top_{_TOP}": ""}
    if scores is None:
        return counts
    counts["patches"] = str(scores.num_instances)
    labels = scores.instance_labels
    if labels is not None and (labels >= 0).all():
        top = np.argsort(-scores.attention_mean, kind="stable")[:_TOP]
        counts["positive_patches"] = str(int((labels > 0).sum()))
        counts[f"positive_in_top_{_TOP}"] = str(int((labels[top] > 0).sum()))
    return counts


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6g}"
