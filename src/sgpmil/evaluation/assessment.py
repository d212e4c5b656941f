"""Assessment of a run: metrics of slides, instances and uncertainty in every fold.

`write_assessment` writes it as tables for a spreadsheet::

    metrics.parquet    a row a fold, a column a metric
    metrics.csv        fold (or mean), metric, value, low and high end of its interval
    confusion.csv      slides by label and predicted class
    brier.csv          parts of the Brier score, a row a fold
    uncertainty.csv    every measure of uncertainty, temperature and prediction sets
    instances.csv      every instance score, where instances have labels
    instance_uncertainty.csv, instance_froc.csv, lesions.csv, pixels.csv   likewise
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.bags.splits import Fold
from sgpmil.bags.tables import SheetWriter
from sgpmil.bags.target import Target
from sgpmil.errors import PredictionError, SettingsError
from sgpmil.evaluation.bootstrap import Intervals, bootstrap_intervals
from sgpmil.evaluation.calibration import BrierDecomposition, brier_decomposition
from sgpmil.evaluation.localisation.instance_evaluation import (
    InstanceEvaluation,
    InstanceFrocRow,
    InstanceOptions,
    evaluate_instances,
)
from sgpmil.evaluation.localisation.lesion_detection import FALSE_POSITIVE_RATES, LesionRow
from sgpmil.evaluation.metrics import INSTANCE_METRICS, InstanceMetrics, confusion_matrix
from sgpmil.evaluation.prediction import CLASS_SCORES
from sgpmil.evaluation.prediction_table import (
    PredictionTable,
    by_patient,
    patient_ids,
    without_patients,
)
from sgpmil.evaluation.summary import FoldMetrics, Summary, measure_fold, summarise, write_metrics
from sgpmil.evaluation.uncertainty.analysis import FoldsUncertainty, uncertainty_over_folds
from sgpmil.notebook import counted, shortened
from sgpmil.shapes import Int
from sgpmil.slides.annotations.folder import AnnotationFolder

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class TestedFold:
    """Predictions of a fold's model for the fold's own slides.

    Args:
        name: Name of the fold.
        test: Predictions of its test slides.
        validation: Predictions of its validation slides, where there are any.
        split: Slides that it was trained, validated and tested on, where known.
        checkpoint: Folder of its model, where there is one.
    """

    __test__ = False  # pytest takes it for a test otherwise

    name: str
    test: PredictionTable
    validation: PredictionTable | None = None
    split: Fold | None = None
    checkpoint: Path | None = None

    @property
    def novelty_slides(self) -> int | None:
        """Number of training slides that the p-values of novelty are of; None where unknown."""
        origin = self.test.provenance
        if origin is not None and origin.novelty_slides is not None:
            return origin.novelty_slides
        return None if self.split is None else len(self.split.train)


@dataclass(frozen=True, slots=True)
class AssessmentOptions:
    """Options of an assessment.

    Args:
        patients: Give each patient one prediction, the mean of the slides'.
        rounds: Rounds of the bootstrap; 0 leaves the intervals out.
        level: Level of the intervals.
        coverage: Share of slides that prediction sets promise to cover.
        temperature_bias: Whether the temperature comes with a bias of each class.
        seed: Seed of the bootstrap and of random attention.
        instances: Options of the evaluation of instances.
    """

    patients: bool = False
    rounds: int = 1000
    level: float = 0.95
    coverage: float = 0.9
    temperature_bias: bool = False
    seed: int = 0
    instances: InstanceOptions = InstanceOptions()  # noqa: RUF009 (it is frozen)


@dataclass(frozen=True, slots=True, eq=False)
class Assessment:
    """Metrics of a run, or of any other system.

    Args:
        folds: Metrics of each fold.
        target: Quantity that is predicted.
        intervals: Confidence intervals of each fold's metrics; empty where not asked for, None
            for a fold with a single slide.
        overall: Confidence intervals of the metrics' means over folds; None where not asked for,
            or of a single slide.
        confusion: Slides of each label (rows) and predicted class (columns), over all folds.
        brier: Parts of the Brier score of each fold.
        uncertainty: Analysis of the uncertainty as a sign of errors.
        instances: How well the scores of instances find the positive ones; None where no
            instance has a label.
        notes: Notes on the numbers, a sentence each.
    """

    folds: tuple[FoldMetrics, ...]
    target: Target
    intervals: tuple[Intervals | None, ...]
    overall: Intervals | None
    confusion: Int[np.ndarray, "C C"]
    brier: tuple[BrierDecomposition, ...]
    uncertainty: FoldsUncertainty
    instances: InstanceEvaluation | None
    notes: tuple[str, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class."""
        return self.target.names

    @property
    def summary(self) -> Summary:
        """Every metric over folds."""
        return summarise(self.folds)

    def __repr__(self) -> str:
        return f"Assessment({counted(len(self.folds), 'fold')}; {shortened(self.class_names)})"

    def _repr_html_(self) -> str:
        return self.summary._repr_html_()

    def to_pandas(self) -> "pd.DataFrame":
        """Return a pandas DataFrame, a row a metric of a fold, with its confidence interval.

        Columns: ``fold``, ``metric``, ``value``, ``low`` and ``high``, as in ``metrics.csv``. The
        means over folds are those of `summary`, which has a `to_pandas` of its own.
        """
        import pandas as pd

        columns = ["fold", "metric", "value", "low", "high"]
        return pd.DataFrame(list(_metric_rows(self)), columns=columns)


def assess(
    folds: Sequence[TestedFold],
    annotations: AnnotationFolder | None = None,
    options: AssessmentOptions | None = None,
) -> Assessment:
    """Measure the predictions of a run, or of any other system.

    Args:
        folds: Predictions of each fold.
        annotations: Annotations that label the instances; without them, the labels that the
            predictions carry are used.
        options: Options of the assessment.

    Raises:
        PredictionError: There are no folds, a fold has no labelled slide, classes differ, or a
            patient's slides have different labels.
        AnnotationError: Annotations cannot be read, or are of none of the slides.
        SettingsError: An option is impossible.
    """
    chosen = options or AssessmentOptions()
    if chosen.rounds < 0:
        raise SettingsError(f"Expected bootstrap rounds >= 0, but got {chosen.rounds}.")
    if not 0 < chosen.coverage < 1:
        raise SettingsError(
            f"Expected a coverage between 0 and 1, such as 0.9, but got {chosen.coverage:g}."
        )
    if not folds:
        raise PredictionError(
            "Expected at least one finished fold, but got none. Continue the run (`resume=True`)."
        )
    instances = _instances(folds, annotations, chosen)
    pairs = [(fold.test, fold.validation) for fold in folds]
    if chosen.patients:
        pairs = [(by_patient(t), None if v is None else by_patient(v)) for t, v in pairs]
    tests = [test.labelled() for test, _ in pairs]
    metrics = tuple(
        measure_fold(test, fold.name) for (test, _), fold in zip(pairs, folds, strict=True)
    )
    if annotations is not None and instances is not None:
        # The labels that the predictions carry, if any, are not those of the annotations.
        metrics = tuple(replace(m, instance=_in_short(instances, m.fold)) for m in metrics)
    num_slides = sum(len(test) for test, _ in pairs)
    num_unknown = num_slides - sum(len(test) for test in tests)
    notes = [f"{num_unknown} of {num_slides} slides have no label and are left out."]
    notes = [*(notes if num_unknown else []), *(_shared_slides(tests) if len(tests) > 1 else [])]
    intervals: tuple[Intervals | None, ...] = ()
    overall = None
    if chosen.rounds:
        intervals = tuple(_intervals([test], chosen) for test in tests)
        overall = _intervals(tests, chosen) if len(tests) > 1 else intervals[0]
        if any(len(set(patient_ids(test))) < 2 <= len(test) for test in tests):
            notes.append(
                "All slides of a test set are of one patient, which looks like a placeholder: the "
                "intervals take each slide for its own patient."
            )
    uncertainty = uncertainty_over_folds(pairs, chosen.coverage, bias=chosen.temperature_bias)
    return Assessment(
        folds=metrics,
        target=tests[0].target,
        intervals=intervals,
        overall=overall,
        confusion=np.sum([_confusion(test) for test in tests], axis=0),
        brier=tuple(brier_decomposition(test.probs, test.labels) for test in tests),
        uncertainty=uncertainty,
        instances=instances,
        notes=(*notes, *uncertainty.notes, *(instances.notes if instances else ())),
    )


def _instances(
    folds: Sequence[TestedFold], annotations: AnnotationFolder | None, options: AssessmentOptions
) -> InstanceEvaluation | None:
    has_labels = any(
        prediction.instances is not None and prediction.instances.instance_labels is not None
        for fold in folds
        for prediction in fold.test.predictions
    )
    if annotations is None and not has_labels:
        if options.instances.threshold == "best_on_test":
            raise SettingsError(
                "Expected instance labels for `best_on_test=True`, but there are none. Give "
                "`annotations`, or leave it out."
            )
        return None
    return evaluate_instances(
        [(fold.test, fold.validation) for fold in folds],
        annotations,
        options.instances,
        names=[fold.name for fold in folds],
    )


def _in_short(instances: InstanceEvaluation, fold: str) -> InstanceMetrics:
    rows = {
        row.score: row
        for row in instances.localisation
        if (row.fold, row.scope) == (fold, "per_slide")
    }
    values = {metric.key: math.nan for metric in INSTANCE_METRICS}
    for score in CLASS_SCORES:
        if score in rows:
            values |= {f"{score}_{name}": getattr(rows[score], name) for name in ("auc", "ap")}
    return InstanceMetrics(values, rows["attention"].num_slides)


def _intervals(tests: Sequence[PredictionTable], options: AssessmentOptions) -> Intervals | None:
    # A test set that is all of one patient is taken for one with a placeholder.
    tests = [without_patients(t) if len(set(patient_ids(t))) < 2 <= len(t) else t for t in tests]
    if len({patient for test in tests for patient in patient_ids(test)}) < 2:
        return None
    return bootstrap_intervals(tests, options.rounds, options.level, options.seed)


def _shared_slides(tests: Sequence[PredictionTable]) -> tuple[str, ...]:
    num_slides = sum(len(test) for test in tests)
    num_distinct = len({slide for test in tests for slide in test.slide_ids})
    if num_distinct == num_slides:
        return ()
    return (
        f"The {len(tests)} folds test {num_slides} times on {num_distinct} slides: the spread over "
        "folds understates that over new slides, and the confusion matrix counts a slide once a "
        "fold.",
    )


def _confusion(test: PredictionTable) -> Int[np.ndarray, "C C"]:
    return confusion_matrix(test.predicted, test.labels, test.target.num_outputs)


_BRIER_PARTS = tuple(field.name for field in fields(BrierDecomposition))


def write_assessment(folder: Path, assessment: Assessment) -> list[Path]:
    """Write the tables of an assessment; those of an earlier one are replaced.

    Returns:
        The files written.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]] = {
        "metrics.csv": (("fold", "metric", "value", "low", "high"), _metric_rows(assessment)),
        "confusion.csv": (("label", *assessment.target.names), _confusion_rows(assessment)),
        "brier.csv": (("fold", *_BRIER_PARTS), _brier_rows(assessment)),
        "uncertainty.csv": (("measure", "mean", "sd", "pooled"), _uncertainty_rows(assessment)),
    }
    instances = assessment.instances
    for name, rows in (
        ("instances", [asdict(row) for row in instances.localisation] if instances else []),
        ("instance_uncertainty", [asdict(r) for r in instances.uncertainty] if instances else []),
        ("instance_froc", [_froc_row(row) for row in instances.instance_froc] if instances else []),
        ("lesions", [_lesion_row(row) for row in instances.lesions] if instances else []),
        ("pixels", [asdict(row) for row in instances.pixels] if instances else []),
    ):
        if rows:
            tables[f"{name}.csv"] = (tuple(rows[0]), [tuple(row.values()) for row in rows])
        else:
            # Tables of an earlier assessment do not stay beside the new ones.
            (folder / f"{name}.csv").unlink(missing_ok=True)
    write_metrics(folder / "metrics.parquet", assessment.folds)
    for name, (header, content) in tables.items():
        with atomic_path(folder / name) as temporary, temporary.open("w", newline="") as file:
            writer = SheetWriter(file, "\r\n")
            writer.writerow(header)
            writer.writerows(tuple(_cell(value) for value in row) for row in content)
    return [folder / "metrics.parquet", *(folder / name for name in tables)]


def _metric_rows(assessment: Assessment) -> Iterable[Sequence[Any]]:
    for number, fold in enumerate(assessment.folds):
        intervals = assessment.intervals[number] if assessment.intervals else None
        for key, value in fold.slide.values.items():
            found = None if intervals is None else intervals.of(key)
            ends = (math.nan, math.nan) if found is None else (found.low, found.high)
            yield (fold.fold, key, value, *ends)
    if assessment.overall is not None and len(assessment.folds) > 1:
        for found in assessment.overall.metrics:
            yield ("mean", found.name, found.value, found.low, found.high)


def _confusion_rows(assessment: Assessment) -> Iterable[Sequence[Any]]:
    for name, row in zip(assessment.target.names, assessment.confusion, strict=True):
        yield (name, *row.tolist())


def _brier_rows(assessment: Assessment) -> Iterable[Sequence[Any]]:
    for fold, parts in zip(assessment.folds, assessment.brier, strict=True):
        yield (fold.fold, *asdict(parts).values())


def _uncertainty_rows(assessment: Assessment) -> Iterable[Sequence[Any]]:
    found = assessment.uncertainty
    for row in (*found.measure_rows, *found.calibration_rows):
        yield (row.name, row.mean, row.sd, row.pooled)


def _froc_row(row: InstanceFrocRow) -> dict[str, Any]:
    return {"fold": row.fold, "score": row.score, **asdict(row.froc)}


def _lesion_row(row: LesionRow) -> dict[str, Any]:
    found = row.froc
    at = (math.nan,) * len(FALSE_POSITIVE_RATES) if found is None else found.sensitivities
    return {
        "fold": row.fold,
        "score": row.score,
        **{f"at_{rate:g}": s for rate, s in zip(FALSE_POSITIVE_RATES, at, strict=True)},
        "mean": math.nan if found is None else found.mean,
        "num_lesions": 0 if found is None else found.num_lesions,
        "num_slides": 0 if found is None else found.num_slides,
        "note": row.note,
    }


def _cell(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value
