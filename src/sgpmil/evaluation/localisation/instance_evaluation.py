"""Evaluation of the instance scores of a run, fold by fold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sgpmil.errors import AnnotationError, PredictionError
from sgpmil.evaluation.localisation.lesion_detection import (
    InstanceFroc,
    LesionRow,
    LesionSettings,
    lesion_detection,
    mnist_froc,
)
from sgpmil.evaluation.localisation.localisation import (
    InstanceUncertaintyRow,
    LocalisationRow,
    instance_uncertainty,
    localisation,
)
from sgpmil.evaluation.localisation.pixel_protocol import PixelRow, pixel_protocol
from sgpmil.evaluation.localisation.scored_slides import (
    AnnotatedTable,
    InstanceLabeller,
    ScoreName,
    available_scores,
    scored_slides,
)
from sgpmil.evaluation.localisation.threshold import Criterion, ThresholdChoice
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.slides.annotations.folder import AnnotationFolder

_MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class InstanceOptions:
    """Options of the evaluation of instances.

    Args:
        min_coverage: Least share of a patch that is positive; 0 means any overlap.
        threshold: Slides on which the threshold of a score is chosen.
        criterion: Metric that the threshold maximises.
        positive_classes: Classes whose slides hold positive instances (default: all but 0).
        lesions: Definition of a lesion and a detection; None for no lesion-level evaluation.
        pixels: Also evaluate by the published pixel protocol.
        slide_sizes: Width and height of slides in level-0 pixels, for the pixel protocol.
        seed: Seed of the `random` attention.
    """

    min_coverage: float = 0.5
    threshold: ThresholdChoice = "validation"
    criterion: Criterion = "balanced_accuracy"
    positive_classes: tuple[int, ...] | None = None
    lesions: LesionSettings | None = LesionSettings()  # noqa: RUF009 (it is frozen)
    pixels: bool = False
    slide_sizes: Mapping[str, tuple[int, int]] | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class InstanceFrocRow:
    """The FROC of instances that is published for bags of digits.

    Args:
        fold: Name of the fold.
        score: Name of the score.
        froc: Area and ceiling.
    """

    fold: str
    score: ScoreName
    froc: InstanceFroc


@dataclass(frozen=True, slots=True)
class InstanceEvaluation:
    """Metrics of the instance scores of a run.

    Args:
        localisation: Rows of every fold, score and scope.
        uncertainty: Rows of every fold, score and scope.
        instance_froc: Rows of every fold and score.
        lesions: Rows of every fold and score; empty without annotations.
        pixels: Rows of every fold and score; empty unless asked for.
        notes: Notes on slides that were left out, a sentence each.
    """

    localisation: tuple[LocalisationRow, ...]
    uncertainty: tuple[InstanceUncertaintyRow, ...]
    instance_froc: tuple[InstanceFrocRow, ...]
    lesions: tuple[LesionRow, ...]
    pixels: tuple[PixelRow, ...]
    notes: tuple[str, ...]


def evaluate_instances(
    folds: Sequence[tuple[PredictionTable, PredictionTable | None]],
    annotations: AnnotationFolder | None = None,
    options: InstanceOptions | None = None,
    *,
    names: Sequence[str] | None = None,
) -> InstanceEvaluation:
    """Evaluate the instance scores of the folds of a run.

    Args:
        folds: Predictions of the test slides of each fold, and of its validation slides where
            there are any.
        annotations: Folder of annotations that label the instances; without it the labels that
            the predictions carry are used.
        options: Options of the evaluation.
        names: Name of each fold (default: 0, 1, …).

    Raises:
        PredictionError: There are no folds, no instance scores or no instance labels, or
            annotations are needed and not given.
        AnnotationError: Annotations cannot be read, or are of none of the slides.
    """
    chosen = options or InstanceOptions()
    _check(folds, annotations, chosen)
    notes: tuple[str, ...] = ()
    if annotations is not None:
        folds, notes = _labelled(folds, annotations, chosen)
    rows: list[InstanceEvaluation] = []
    for position, (test, validation) in enumerate(folds):
        fold = str(position) if names is None else names[position]
        rows.append(_evaluate_fold(test, validation, annotations, chosen, fold))
    return InstanceEvaluation(
        localisation=tuple(row for one in rows for row in one.localisation),
        uncertainty=tuple(row for one in rows for row in one.uncertainty),
        instance_froc=tuple(row for one in rows for row in one.instance_froc),
        lesions=tuple(row for one in rows for row in one.lesions),
        pixels=tuple(row for one in rows for row in one.pixels),
        notes=notes,
    )


def _evaluate_fold(
    test: PredictionTable,
    validation: PredictionTable | None,
    annotations: AnnotationFolder | None,
    options: InstanceOptions,
    fold: str,
) -> InstanceEvaluation:
    classes, seed = options.positive_classes, options.seed
    frocs = [
        InstanceFrocRow(
            fold,
            score,
            mnist_froc(scored_slides(test, score, positive_classes=classes, seed=seed)),
        )
        for score in available_scores(test)
    ]
    lesions: tuple[LesionRow, ...] = ()
    if annotations is not None and options.lesions is not None:
        lesions = lesion_detection(
            test, annotations, options.lesions, positive_classes=classes, seed=seed, fold=fold
        )
    pixels: tuple[PixelRow, ...] = ()
    if annotations is not None and options.pixels:
        pixels = pixel_protocol(
            test,
            annotations,
            slide_sizes=options.slide_sizes,
            positive_classes=classes,
            seed=seed,
            fold=fold,
        )
    return InstanceEvaluation(
        localisation=localisation(
            test,
            validation,
            threshold=options.threshold,
            criterion=options.criterion,
            positive_classes=classes,
            seed=seed,
            fold=fold,
        ),
        uncertainty=instance_uncertainty(
            test,
            validation,
            threshold=options.threshold,
            criterion=options.criterion,
            positive_classes=classes,
            fold=fold,
        ),
        instance_froc=tuple(frocs),
        lesions=lesions,
        pixels=pixels,
        notes=(),
    )


def _labelled(
    folds: Sequence[tuple[PredictionTable, PredictionTable | None]],
    annotations: AnnotationFolder,
    options: InstanceOptions,
) -> tuple[list[tuple[PredictionTable, PredictionTable | None]], tuple[str, ...]]:
    tables = [table for fold in folds for table in fold if table is not None]
    predicted = {slide_id for table in tables for slide_id in table.slide_ids}
    if not any(slide_id in annotations for slide_id in predicted):
        raise AnnotationError(
            f"Expected annotations of the predicted slides ({_some(sorted(predicted))}) in "
            f"'{annotations.folder}', but got those of {_some(sorted(annotations.files))}. "
            "Name the files after the slides."
        )
    labeller = InstanceLabeller(annotations, options.min_coverage, options.positive_classes)
    found = [
        (labeller.label(test), None if validation is None else labeller.label(validation))
        for test, validation in folds
    ]
    labelled = [(test.table, None if val is None else val.table) for test, val in found]
    everything = [one for pair in found for one in pair if one is not None]
    unfitting = [name for one in everything for name in one.without_positive_region]
    if unfitting and not any(one.annotated for one in everything):
        raise AnnotationError(
            f"Expected positive regions in the annotations of positive slides, but none of "
            f"{len(set(unfitting))} has one. Name the regions that are positive (`regions`)."
        )
    unused = tuple(slide_id for slide_id in annotations.files if slide_id not in predicted)
    return labelled, _notes(everything, unused)


def _notes(tables: Sequence[AnnotatedTable], unused: tuple[str, ...]) -> tuple[str, ...]:
    def slides(attribute: str) -> list[str]:
        return sorted({name for table in tables for name in getattr(table, attribute)})

    notes = (
        (list(unused), "Annotations of no predicted slide"),
        (
            slides("without_annotations"),
            "Positive slides without annotations, left out",
        ),
        (
            slides("without_positive_region"),
            "Positive slides whose annotations have no positive region, left out",
        ),
        (
            slides("contradicted"),
            "Negative slides whose annotations have a positive region, which is ignored",
        ),
    )
    return tuple(f"{what}: {_some(names)} ({len(names)})." for names, what in notes if names)


def _check(
    folds: Sequence[tuple[PredictionTable, PredictionTable | None]],
    annotations: AnnotationFolder | None,
    options: InstanceOptions,
) -> None:
    instances = [p.instances for test, _ in folds for p in test.predictions]
    scores = [one for one in instances if one is not None]
    if not scores:
        raise PredictionError(
            f"Expected predictions with the scores of instances, but got none in {len(folds)} "
            "folds. Predict with instance scores."
        )
    if annotations is not None:
        return
    if options.pixels:
        raise PredictionError(
            "Expected annotations for the pixel protocol, but got none. Give `annotations`."
        )
    if all(one.instance_labels is None for one in scores):
        raise PredictionError(
            "Expected instance labels or annotations, but got neither. Give `annotations`."
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
