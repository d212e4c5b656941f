"""How a run is explained, and which of its slides."""

from collections import Counter
from dataclasses import dataclass

from sgpmil.bags.tables import listed
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.explanation.explanation_folder import ExportKind
from sgpmil.explanation.maps import ScaleKind
from sgpmil.explanation.prototypes import SimilarityMeasure
from sgpmil.runs.material import MaterialFold, RunMaterial

__all__ = ["ChosenSlide", "ClassChoice", "ExplanationSettings", "choose_slides"]


@dataclass(frozen=True, slots=True)
class ExplanationSettings:
    """How a run is explained, and how much of it.

    Args:
        scale: Scale of the maps.
        class_name: Class that the evidence maps are for; by default the second of two and, of
            more, the one that is predicted.
        prototypes: How patches are compared with inducing points; None for no prototypes.
        exports: Files for other programs.
        geojson_origin: Level-0 position (x, y) that QuPath takes as the slide's origin.
        only: Slides to explain; all by default.
        folds: Folds to explain; all by default.
        most: Most slides, the least certain first; all by default.
    """

    scale: ScaleKind = "absolute"
    class_name: str | None = None
    prototypes: SimilarityMeasure | None = "cosine"
    exports: tuple[ExportKind, ...] = ()
    geojson_origin: tuple[int, int] = (0, 0)
    only: tuple[str, ...] = ()
    folds: tuple[str, ...] = ()
    most: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChosenSlide:
    """A test slide that is to be explained.

    Args:
        fold: The fold that tested it.
        prediction: What its model says of it.
        name: Name of its files.
    """

    fold: MaterialFold
    prediction: Prediction
    name: str


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """The class that the evidence maps are for.

    Args:
        names: Name of each class.
        wanted: The class asked for; by default the second of two and, of more, the predicted one.

    Raises:
        ExplanationError: There is no such class.
    """

    names: tuple[str, ...]
    wanted: str | None = None

    def __post_init__(self) -> None:
        if self.wanted is not None and self.wanted not in self.names:
            raise ExplanationError(
                f"Expected a class among {', '.join(self.names)}, but got '{self.wanted}'. "
                "Choose one of these."
            )

    def of(self, prediction: Prediction) -> int:
        """Give the class for a slide."""
        if self.wanted is not None:
            return self.names.index(self.wanted)
        return 1 if len(self.names) == 2 else prediction.predicted_class


def choose_slides(material: RunMaterial, settings: ExplanationSettings) -> list[ChosenSlide]:
    """Choose the slides to explain, the least certain first.

    Args:
        material: The run.
        settings: Which slides and folds, and how many.

    Raises:
        ExplanationError: A slide or fold is not of the run, or there are no scores of instances.
    """
    names = [fold.name for fold in material.folds]
    unknown = [name for name in settings.folds if name not in names]
    if unknown:
        raise ExplanationError(
            f"Expected folds among {', '.join(names)}, which are done, but got '{unknown[0]}'. "
            "Choose one of these."
        )
    strangers = [slide_id for slide_id in settings.only if slide_id not in material.slide_ids]
    if strangers:
        raise ExplanationError(
            f"Expected test slides of {material.path}, such as '{min(material.slide_ids)}', but "
            f"got {listed(strangers)}. Check their spelling."
        )
    counts = Counter(prediction.slide_id for _, prediction in material.predictions())
    tasks = [
        ChosenSlide(
            fold,
            prediction,
            # A slide that several folds tested has files of each.
            prediction.slide_id
            if counts[prediction.slide_id] == 1
            else f"{prediction.slide_id}.fold-{fold.name}",
        )
        for fold, prediction in material.predictions()
        if (not settings.folds or fold.name in settings.folds)
        and (not settings.only or prediction.slide_id in settings.only)
    ]
    if not any(task.prediction.instances is not None for task in tasks):
        raise ExplanationError(
            f"Expected scores of the instances in {material.path}, but there are none for these "
            "slides. Predict them again, with the instances."
        )
    tasks.sort(key=lambda task: (-task.prediction.entropy, task.prediction.slide_id))
    return tasks if settings.most is None else tasks[: settings.most]
