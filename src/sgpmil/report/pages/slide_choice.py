"""Which slides are shown: the surest right ones, the surest wrong ones, the least certain."""

from collections.abc import Sequence
from dataclasses import dataclass

from sgpmil.evaluation.prediction import Prediction
from sgpmil.runs.material import MaterialFold, RunMaterial

__all__ = ["ChosenSlides", "TestedSlide", "choose_slides"]


@dataclass(frozen=True, slots=True, eq=False)
class TestedSlide:
    """A slide as one fold's model saw it.

    Args:
        fold: The fold.
        prediction: What its model says.
    """

    __test__ = False  # pytest takes it for a test otherwise

    fold: MaterialFold
    prediction: Prediction


@dataclass(frozen=True, slots=True, eq=False)
class ChosenSlides:
    """The slides to show.

    Args:
        best: Rightly predicted with the largest probability, one slide of each class that has
            any; of unlabelled slides, the surest of each predicted class. Of probabilities that
            differ by less than 0.01, the one with the most patches.
        worst: Wrongly predicted, the most probable first.
        uncertain: Of the largest entropy, the largest first.
    """

    best: tuple[TestedSlide, ...]
    worst: tuple[TestedSlide, ...]
    uncertain: tuple[TestedSlide, ...]


def choose_slides(material: RunMaterial, most: int = 3) -> ChosenSlides:
    """Choose the slides to show; a slide that several folds test counts once, with its extreme.

    Args:
        material: The run.
        most: Most slides that are wrong, and most that are unsure; of the best there is one
            a class.
    """
    tested = [TestedSlide(fold, prediction) for fold, prediction in material.predictions()]
    labelled = [one for one in tested if one.prediction.label is not None]
    right = [one for one in labelled if one.prediction.predicted_class == one.prediction.label]
    wrong = [one for one in labelled if one.prediction.predicted_class != one.prediction.label]
    surest = sorted(right if labelled else tested, key=_surest, reverse=True)
    best: list[TestedSlide] = []
    for class_index in range(len(material.class_names)):
        own = [one for one in surest if one.prediction.predicted_class == class_index]
        best += own[:1]
    return ChosenSlides(
        best=_once(best, len(best)),
        worst=_once(sorted(wrong, key=_top, reverse=True), most),
        uncertain=_once(sorted(tested, key=lambda one: one.prediction.entropy, reverse=True), most),
    )


def _top(tested: TestedSlide) -> float:
    return float(tested.prediction.probs.max())


def _surest(tested: TestedSlide) -> tuple[float, int]:
    scores = tested.prediction.instances
    return round(_top(tested), 2), 0 if scores is None else scores.num_instances


def _once(tested: Sequence[TestedSlide], most: int) -> tuple[TestedSlide, ...]:
    first: dict[str, TestedSlide] = {}
    for one in tested:
        first.setdefault(one.prediction.slide_id, one)
    return tuple(first.values())[:most]
