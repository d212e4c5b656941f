"""All that is measured of a model's uncertainty, for one fold and over folds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import (
    adaptive_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
)
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import ConformalMethod, fit_conformal
from sgpmil.evaluation.uncertainty.measures import (
    UNCERTAINTY_MEASURES,
    UncertaintyMeasure,
    error_auroc,
    wrong_slides,
)
from sgpmil.evaluation.uncertainty.selective import SelectivePrediction, selective_prediction
from sgpmil.evaluation.uncertainty.set_metrics import SetMetrics, set_metrics
from sgpmil.evaluation.uncertainty.temperature import Temperature, fit_temperature
from sgpmil.evaluation.uncertainty.welch import CorrectVersusWrong, correct_versus_wrong

__all__ = [
    "Confidence",
    "MeasureAnalysis",
    "ScaledConfidence",
    "UncertaintyAnalysis",
    "measure_analysis",
    "pooled_table",
    "table_confidence",
    "uncertainty_analysis",
]

METHODS: tuple[ConformalMethod, ...] = ("lac", "aps")


@dataclass(frozen=True, slots=True, eq=False)
class MeasureAnalysis:
    """What one measure of uncertainty is good for.

    Args:
        measure: The measure.
        error_auroc: Chance that a wrong prediction is less certain than a correct one.
        selective: Errors among the most certain slides.
        groups: Correct and wrong predictions compared by Welch's test.
    """

    measure: UncertaintyMeasure
    error_auroc: float
    selective: SelectivePrediction
    groups: CorrectVersusWrong


@dataclass(frozen=True, slots=True)
class Confidence:
    """How well the probabilities of test slides are calibrated.

    Args:
        ece: Expected calibration error, 10 bins.
        ace: Adaptive calibration error, 10 bins.
        nll: Mean negative log-likelihood in nats.
    """

    ece: float
    ace: float
    nll: float


@dataclass(frozen=True, slots=True)
class ScaledConfidence:
    """What a temperature does to the calibration of test slides.

    Args:
        temperature: The temperature, fitted on the validation slides.
        before: Calibration of the test slides as predicted.
        after: The same with the temperature.
    """

    temperature: Temperature
    before: Confidence
    after: Confidence


@dataclass(frozen=True, slots=True, eq=False)
class UncertaintyAnalysis:
    """The uncertainty of one fold.

    Args:
        num_slides: Number of test slides with a label.
        num_wrong: Number of them predicted wrong.
        measures: Analysis of each measure, in the order of `UNCERTAINTY_MEASURES`.
        scaled: What temperature scaling does; None without validation slides.
        sets: What prediction sets do, for LAC and APS; empty without validation slides.
        calibration_notes: What to know of temperature and sets, a sentence each.
    """

    num_slides: int
    num_wrong: int
    measures: tuple[MeasureAnalysis, ...]
    scaled: ScaledConfidence | None
    sets: tuple[SetMetrics, ...]
    calibration_notes: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of all numbers, a sentence each."""
        # Every set of predictions has this measure: what hinders its test hinders every test.
        welch = self.measures[UNCERTAINTY_MEASURES.index("max_probability")].groups.note
        return (*self.calibration_notes, *([welch] if welch else []))


def uncertainty_analysis(
    test: PredictionTable, validation: PredictionTable | None = None, coverage: float = 0.9
) -> UncertaintyAnalysis:
    """Analyse the uncertainty of a model over the test slides of one fold.

    Temperature and prediction sets are fitted on the validation slides and measured on the test
    slides. Where the validation slides chose the epoch as well, both are a little optimistic.
    Where a slide is in both tables, neither is fitted, and a note says so.

    Args:
        test: Predictions of test slides; those without a label are left out.
        validation: Predictions of the same model for its validation slides, where there are any.
        coverage: Share of slides that prediction sets promise to cover.

    Raises:
        PredictionError: No test slide has a label, or the classes of the tables differ.
    """
    known = test.labelled()
    if not len(known):
        raise PredictionError(
            f"Expected at least one test slide with a label, but got none among {len(test)}. "
            "Add labels to the predictions."
        )
    held_out = None if validation is None else validation.labelled()
    scaled = None
    sets: tuple[SetMetrics, ...] = ()
    notes: list[str] = []
    shared = set() if held_out is None else set(known.slide_ids) & set(held_out.slide_ids)
    if shared:
        notes = [
            f"Temperature and prediction sets are left out, for {len(shared)} test slides are "
            "validation slides as well."
        ]
    elif held_out is not None and len(held_out):
        scaled = _scaled(known, fit_temperature(held_out))
        predictors = [fit_conformal(held_out, coverage, method) for method in METHODS]
        sets = tuple(set_metrics(predictor, known) for predictor in predictors)
        # Both methods need as many slides.
        notes = [scaled.temperature.note, predictors[0].note]
    return UncertaintyAnalysis(
        num_slides=len(known),
        num_wrong=int(wrong_slides(known).sum()),
        measures=measure_analysis(known),
        scaled=scaled,
        sets=sets,
        calibration_notes=tuple(note for note in notes if note),
    )


def measure_analysis(table: PredictionTable) -> tuple[MeasureAnalysis, ...]:
    """Analyse every measure of uncertainty; NaN where the predictions lack one.

    Args:
        table: Predictions; those without a label are left out.
    """
    known = table.labelled()
    return tuple(
        MeasureAnalysis(
            measure=measure,
            error_auroc=error_auroc(known, measure),
            selective=selective_prediction(known, measure),
            groups=correct_versus_wrong(known, measure),
        )
        for measure in UNCERTAINTY_MEASURES
    )


def pooled_table(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Put the labelled slides of several folds into one table, each named after its fold.

    A slide that several folds tested counts in each: every model's prediction of it is another
    prediction.

    Args:
        tables: Predictions of each fold.

    Raises:
        PredictionError: There are no folds, or their classes differ.
    """
    names = {table.class_names for table in tables}
    if len(names) != 1:
        raise PredictionError(
            f"Expected folds with the same classes, but got {len(names)} different lists of "
            "them. Pool the folds of one experiment."
        )
    predictions = (
        replace(prediction, slide_id=f"{fold}/{prediction.slide_id}", instances=None)
        for fold, table in enumerate(tables)
        for prediction in table.labelled().predictions
    )
    return PredictionTable(tuple(predictions), tables[0].class_names)


def _scaled(table: PredictionTable, temperature: Temperature) -> ScaledConfidence:
    return ScaledConfidence(
        temperature=temperature,
        before=table_confidence(table),
        after=table_confidence(temperature.apply(table)),
    )


def table_confidence(table: PredictionTable) -> Confidence:
    """Measure the calibration of labelled slides.

    Args:
        table: Predictions, all with a label.
    """
    probs, labels = table.probs, table.labels
    return Confidence(
        ece=expected_calibration_error(probs, labels),
        ace=adaptive_calibration_error(probs, labels),
        nll=negative_log_likelihood(probs, labels),
    )
