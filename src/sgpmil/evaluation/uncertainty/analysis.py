"""Uncertainty of a model in one fold, and over folds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sgpmil.errors import PredictionError
from sgpmil.evaluation.metrics import METRICS
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.provenance import joined_provenance
from sgpmil.evaluation.summary import MetricSummary, summarise_values
from sgpmil.evaluation.uncertainty.calibration_slides import too_few_slides
from sgpmil.evaluation.uncertainty.conformal import (
    ConformalMethod,
    SetMetrics,
    fit_conformal,
    pooled_set_metrics,
    set_metrics,
)
from sgpmil.evaluation.uncertainty.error_detection import error_detection
from sgpmil.evaluation.uncertainty.measures import (
    COVERAGES,
    UNCERTAINTY_MEASURES,
    CorrectVersusWrong,
    SelectivePrediction,
    UncertaintyMeasure,
    correct_versus_wrong,
    error_auroc,
    selective_prediction,
    wrong_slides,
)
from sgpmil.evaluation.uncertainty.temperature import Temperature, fit_temperature

METHODS: tuple[ConformalMethod, ...] = ("lac", "aps")

_CALIBRATION = ("ece", "ace", "nll")

_SIGNIFICANT = 0.05

_SHOWN = COVERAGES.index(0.8)
"""The coverage that the grid has room for."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasureAnalysis:
    """Analysis of one measure of uncertainty.

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
class ScaledConfidence:
    """Calibration of test slides before and after temperature scaling.

    Args:
        temperature: The temperature, fitted on the validation slides.
        before: ECE, ACE and NLL of the test slides as predicted, by the keys of `METRICS`.
        after: The same with the temperature.
        class_names: Name of each class.
    """

    temperature: Temperature
    before: Mapping[str, float]
    after: Mapping[str, float]
    class_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class UncertaintyAnalysis:
    """The uncertainty of one fold.

    Args:
        num_slides: Number of test slides with a label.
        num_wrong: Number of them predicted wrong.
        measures: Analysis of each measure, in the order of `UNCERTAINTY_MEASURES`.
        scaled: Calibration before and after temperature scaling; None without enough validation
            slides.
        sets: Metrics of prediction sets of LAC and APS; empty without enough validation slides.
        calibration_notes: Notes on temperature and sets, a sentence each.
    """

    num_slides: int
    num_wrong: int
    measures: tuple[MeasureAnalysis, ...]
    scaled: ScaledConfidence | None
    sets: tuple[SetMetrics, ...]
    calibration_notes: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on all numbers, a sentence each."""
        # Every set of predictions has this measure: what hinders its test hinders every test.
        welch = self.measures[UNCERTAINTY_MEASURES.index("max_probability")].groups.note
        return (*self.calibration_notes, *([welch] if welch else []))


def uncertainty_analysis(
    test: PredictionTable,
    validation: PredictionTable | None = None,
    coverage: float = 0.9,
    *,
    bias: bool = False,
) -> UncertaintyAnalysis:
    """Analyse the uncertainty of a model over the test slides of one fold.

    Temperature and prediction sets are fitted on the validation slides and measured on the test
    slides. Where the validation slides chose the epoch as well, both are a little optimistic.
    Where a slide is in both tables, or the validation slides are fewer than
    `MIN_CALIBRATION_SLIDES`, neither is fitted, and a note says so.

    Args:
        test: Predictions of test slides; those without a label are left out.
        validation: Predictions of the same model for its validation slides, where there are any.
        coverage: Share of slides that prediction sets promise to cover.
        bias: Whether the temperature comes with a bias of each class.

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
            f"Temperature and prediction sets are left out because {len(shared)} test "
            "slides are validation slides as well."
        ]
    elif held_out is not None and len(held_out) and (few := too_few_slides(len(held_out))):
        notes = [few]
    elif held_out is not None and len(held_out):
        temperature = fit_temperature(held_out, bias=bias)
        after = temperature.apply(known)
        scaled = ScaledConfidence(
            temperature, _calibration(known), _calibration(after), known.target.names
        )
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

    Raises:
        PredictionError: There are no folds, or their classes differ.
    """
    targets = {table.target for table in tables}
    if len(targets) != 1:
        raise PredictionError(
            f"Expected folds with the same classes, but got {len(targets)} different lists of "
            "them. Pool the folds of one experiment."
        )
    predictions = (
        replace(prediction, slide_id=f"{fold}/{prediction.slide_id}", instances=None)
        for fold, table in enumerate(tables)
        for prediction in table.labelled().predictions
    )
    provenance = joined_provenance([table.provenance for table in tables])
    return PredictionTable(tuple(predictions), tables[0].target, provenance)


@dataclass(frozen=True, slots=True)
class UncertaintyRow(MetricSummary):
    """One number of the uncertainty over folds.

    Args:
        pooled: The number over the slides of all folds together; NaN where undefined.
    """

    pooled: float

    @property
    def texts(self) -> tuple[str, str, str]:
        """Name, mean ± sd and pooled number as text; a dash where undefined."""
        spread = "" if math.isnan(self.sd) else f" ± {self.sd:.3f}"
        return self.name, f"{_format_number(self.mean)}{spread}", _format_number(self.pooled)


@dataclass(frozen=True, slots=True, eq=False)
class FoldsUncertainty:
    """The uncertainty of several folds.

    Args:
        folds: Analysis of each fold.
        pooled: Analysis of each measure over the slides of all folds together: single folds
            have few errors.
        pooled_sets: Prediction sets of all folds counted together; empty unless every fold has
            validation slides.
        pooled_confidence: Calibration of all folds' slides together, before and after each fold's
            temperature; empty unless every fold has validation slides.
        notes: Notes on these numbers, a sentence each.
    """

    folds: tuple[UncertaintyAnalysis, ...]
    pooled: tuple[MeasureAnalysis, ...]
    pooled_sets: tuple[SetMetrics, ...]
    pooled_confidence: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def measure_rows(self) -> tuple[UncertaintyRow, ...]:
        """Error AUROC, AURC, excess AURC, selective accuracy and Welch's p of each measure."""
        return tuple(
            row
            for number, pooled in enumerate(self.pooled)
            for row in _rows(
                [_measure_numbers(fold.measures[number]) for fold in self.folds],
                _measure_numbers(pooled),
                pooled.measure,
            )
        )

    @property
    def calibration_rows(self) -> tuple[UncertaintyRow, ...]:
        """Temperature, calibration before and after it, and prediction sets."""
        if not any(fold.scaled for fold in self.folds):
            return ()
        rows = list(
            _rows([_scaled_numbers(fold.scaled) for fold in self.folds], self.pooled_confidence)
        )
        for number, method in enumerate(METHODS):
            own = [_set_numbers(fold.sets[number] if fold.sets else None) for fold in self.folds]
            pooled = _set_numbers(self.pooled_sets[number] if self.pooled_sets else None)
            rows += _rows(own, pooled, method.upper())
        return tuple(rows)

    @property
    def measure_header(self) -> tuple[str, ...]:
        """Header of `measure_grid`."""
        pooled = ("pooled",) if len(self.folds) > 1 else ()
        shown = f"accuracy\nat {COVERAGES[_SHOWN]:.0%}"
        welch = "one-sided\nWelch p"
        return ("uncertainty", "error\nAUROC", *pooled, "AURC", "excess\nAURC", shown, welch)

    @property
    def measure_grid(self) -> tuple[tuple[str, ...], ...]:
        """A row a measure that the predictions carry, narrow enough for a terminal.

        The first number is the mean over folds of the error AUROC; all others are of the slides
        of all folds together, for a fold without errors has no excess AURC, and means over
        different folds could not be compared. Welch's p is that wrong slides are no less certain.
        """
        grid = []
        for number, pooled in enumerate(self.pooled):
            selective = pooled.selective
            if math.isnan(selective.aurc):
                continue
            areas = [fold.measures[number].error_auroc for fold in self.folds]
            grid.append(
                (
                    pooled.measure.replace("_", " "),
                    _format_number(summarise_values("", areas).mean),
                    *([_format_number(pooled.error_auroc)] if len(areas) > 1 else []),
                    _format_number(selective.aurc),
                    _format_number(selective.excess_aurc),
                    _format_number(selective.accuracies[_SHOWN]),
                    _format_p_value(pooled.groups.p_value),
                )
            )
        return tuple(grid)


def uncertainty_over_folds(
    folds: Sequence[tuple[PredictionTable, PredictionTable | None]],
    coverage: float = 0.9,
    *,
    bias: bool = False,
) -> FoldsUncertainty:
    """Analyse every fold, and the slides of all folds together.

    Pooling puts predictions of several models side by side. Where test sets overlap, a slide
    counts once a fold, so that Welch's p over the pooled slides is too small.

    Args:
        folds: Predictions of each fold's test slides, and of its validation slides where there
            are any.
        coverage: Share of slides that prediction sets promise to cover.
        bias: Whether the temperature comes with a bias of each class.

    Raises:
        PredictionError: There are no folds, a fold has no labelled slide, or the classes differ.
    """
    if not folds:
        raise PredictionError(
            "Expected at least one fold to analyse, but got none. Pass the predictions of one."
        )
    analyses = tuple(uncertainty_analysis(*fold, coverage, bias=bias) for fold in folds)
    pooled = measure_analysis(pooled_table([test for test, _ in folds]))
    sets: tuple[SetMetrics, ...] = ()
    if all(fold.sets for fold in analyses):
        sets = tuple(
            pooled_set_metrics(of_method)
            for of_method in zip(*(fold.sets for fold in analyses), strict=True)
        )
    confidence: dict[str, float] = {}
    temperatures = [fold.scaled.temperature for fold in analyses if fold.scaled is not None]
    if len(temperatures) == len(folds):
        tests = [test for test, _ in folds]
        after = [t.apply(test.labelled()) for t, test in zip(temperatures, tests, strict=True)]
        confidence = _calibration_numbers(
            _calibration(pooled_table(tests)), _calibration(pooled_table(after))
        )
    welch = pooled[UNCERTAINTY_MEASURES.index("max_probability")].groups.note
    doubt = _welch_doubt(pooled_table([test for test, _ in folds]), pooled)
    notes = (*_calibration_notes(analyses), *(note for note in (welch, doubt) if note))
    return FoldsUncertainty(analyses, pooled, sets, confidence, notes)


def _welch_doubt(table: PredictionTable, analyses: Sequence[MeasureAnalysis]) -> str:
    """Say where Welch's test is surer than the interval of the error AUROC; empty nowhere."""
    found = [(one.groups.p_value, error_detection(table, one.measure)) for one in analyses]
    doubtful = [one for p_value, one in found if p_value < _SIGNIFICANT and not one.is_shown]
    if not doubtful:
        return ""
    names = ", ".join(one.measure.replace("_", " ") for one in doubtful)
    return (
        f"Welch's p of {names} is below {_SIGNIFICANT}, but may be chance: it takes the spread of "
        f"{doubtful[0].num_wrong} wrong and {doubtful[0].num_right} right slides as known. The "
        "interval of the error AUROC, which needs no such assumption, holds 0.5. Go by the "
        "interval."
    )


def _measure_numbers(analysis: MeasureAnalysis) -> dict[str, float]:
    selective, groups = analysis.selective, analysis.groups
    accuracies = {
        f"accuracy at {coverage:.0%}": accuracy
        for coverage, accuracy in zip(COVERAGES, selective.accuracies, strict=True)
    }
    return {
        "error AUROC": analysis.error_auroc,
        "AURC": selective.aurc,
        "excess AURC": selective.excess_aurc,
        **accuracies,
        "Welch p, one-sided": groups.p_value,
    }


def _scaled_numbers(scaled: ScaledConfidence | None) -> dict[str, float]:
    if scaled is None:
        return {}
    # A temperature without a bias has none of any class.
    biases = zip(scaled.class_names, scaled.temperature.bias, strict=False)
    return {
        "temperature": scaled.temperature.value,
        **{f"bias of {name}": value for name, value in biases},
        **_calibration_numbers(scaled.before, scaled.after),
    }


def _calibration(table: PredictionTable) -> dict[str, float]:
    return {key: METRICS[key](table) for key in _CALIBRATION}


def _calibration_numbers(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    return {
        f"{METRICS[key].name} {when}": values[key]
        for when, values in (("before", before), ("after", after))
        for key in _CALIBRATION
    }


def _set_numbers(sets: SetMetrics | None) -> dict[str, float]:
    if sets is None:
        return {}
    of_class = {
        f"coverage of {name}": float(value)
        for name, value in zip(sets.target.names, sets.class_coverage, strict=True)
    }
    return {
        "coverage": sets.coverage,
        **of_class,
        "classes in a set": sets.mean_size,
        "sets of one class": sets.share_single,
        "empty, so given the top class": sets.share_empty,
    }


def _rows(
    folds: Sequence[Mapping[str, float]], pooled: Mapping[str, float], of: str = ""
) -> list[UncertaintyRow]:
    names = dict.fromkeys(name for numbers in folds for name in numbers)
    return [
        _row(
            f"{of}: {name}" if of else name,
            [numbers.get(name, math.nan) for numbers in folds],
            pooled.get(name, math.nan),
        )
        for name in names
    ]


def _row(name: str, values: Sequence[float], pooled: float) -> UncertaintyRow:
    found = summarise_values(name, values)
    return UncertaintyRow(name, found.mean, found.sd, found.values, found.num_undefined, pooled)


def _format_number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _format_p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else _format_number(p)


def _calibration_notes(folds: Sequence[UncertaintyAnalysis]) -> tuple[str, ...]:
    """List every note once, with the number of folds that have it."""
    found = [note for fold in folds for note in fold.calibration_notes]
    return tuple(
        f"{note} ({found.count(note)} of {len(folds)} folds)" if len(folds) > 1 else note
        for note in dict.fromkeys(found)
    )
