"""Evaluation of a run, or of predictions of any other system, with tables and figures.

The command ``sgpmil evaluate`` calls `evaluate_run`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sgpmil.errors import RunFolderError, SettingsError
from sgpmil.evaluation.assessment import (
    Assessment,
    AssessmentOptions,
    TestedFold,
    assess,
    write_assessment,
)
from sgpmil.evaluation.localisation.instance_evaluation import InstanceOptions
from sgpmil.evaluation.localisation.lesion_detection import LesionSettings
from sgpmil.evaluation.prediction_table import PredictionTable, by_patient
from sgpmil.evaluation.provenance import PredictionProvenance, joined_provenance
from sgpmil.evaluation.uncertainty.decisions import DecisionMetrics, measure_decisions
from sgpmil.report.figures.run_figures import write_run_figures
from sgpmil.report.figures.uncertainty_figures import write_uncertainty_figures
from sgpmil.runs.prediction_folder import read_decisions
from sgpmil.runs.results import Results, open_results
from sgpmil.slides.annotations.folder import AnnotationOptions


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(AnnotationOptions):
    """Options of `evaluate_run`.

    Args:
        predictions: A run, the folder of a fold or of predictions, or a table: of this package,
            CLAM, STAMP or slideflow, or a CSV with columns slide_id, label, p_0, p_1, …
        out: Folder for tables and figures; without it nothing is written.
        validation: Predictions of validation slides by the same model, for thresholds, temperature
            and prediction sets. A run has its own.
        patients: Measure patients instead of slides: a patient has the mean of the slides.
        bootstrap: Rounds of the confidence intervals, by patient; 0 for none.
        coverage: Share of slides whose prediction sets should contain the label.
        temperature_bias: Fit a bias of each class beside the temperature.
        mpp: Microns per level-0 pixel; with it, lesions are joined and left out by size as in
            CAMELYON16.
        best_on_test: Choose the threshold of instance scores on the test slides, as is often
            published. The results are too good.
        pixels: Measure also by the published pixel protocol, which counts the background.
        seed: Seed of the bootstrap and of random attention.
        ordinal: The classes are ordered, such as grades, where the predictions do not say so; their
            order must be known.
        order: The ordered classes from the lowest to the highest, such as NC,G3,G4,G5.
        full: Print every measurement, too.
        keep_seen: Measure slides that the model was trained on, too; they are left out else.
        overwrite: Replace an existing evaluation.
    """

    predictions: Path
    out: Path | None = None
    validation: Path | None = None
    patients: bool = False
    bootstrap: int = 1000
    coverage: float = 0.9
    temperature_bias: bool = False
    mpp: float | None = None
    best_on_test: bool = False
    pixels: bool = False
    seed: int = 0
    ordinal: bool = False
    order: tuple[str, ...] | None = None
    full: bool = False
    keep_seen: bool = False
    overwrite: bool = False

    def assessment_options(self) -> AssessmentOptions:
        """Return the options of `sgpmil.evaluation.assess`."""
        lesions = LesionSettings() if self.mpp is None else LesionSettings.camelyon16(self.mpp)
        return AssessmentOptions(
            patients=self.patients,
            rounds=self.bootstrap,
            coverage=self.coverage,
            temperature_bias=self.temperature_bias,
            seed=self.seed,
            instances=InstanceOptions(
                min_coverage=self.min_coverage,
                threshold="best_on_test" if self.best_on_test else "validation",
                lesions=lesions,
                pixels=self.pixels,
                seed=self.seed,
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """An evaluation of predictions.

    Args:
        assessment: The measurements.
        results: The predictions; some folds of a run may not be done.
        tests: Predictions of each fold that were measured.
        decisions: How prediction sets and deferral of ``sgpmil predict`` turned out; None without.
        tables: Tables that were written.
        figures: Figures that were written.
    """

    assessment: Assessment
    results: Results
    tests: tuple[PredictionTable, ...] = ()
    decisions: DecisionMetrics | None = None
    tables: tuple[Path, ...] = ()
    figures: tuple[Path, ...] = ()

    @property
    def provenance(self) -> PredictionProvenance | None:
        """Origin of the predictions, where all of them know it."""
        return joined_provenance([test.provenance for test in self.tests])


def evaluate_run(options: EvaluateOptions) -> Evaluation:
    """Measure a run, or predictions of any other system; write tables and figures.

    Raises:
        RunFolderError: The folder holds an evaluation already, or the run is damaged.
        PredictionError: There are no predictions, or they are damaged.
        SettingsError: Options about annotations come without any.
        AnnotationError: There are no annotations.
    """
    out = options.out
    if out is not None and (out / "metrics.parquet").exists() and not options.overwrite:
        raise RunFolderError(
            f"{out} holds an evaluation already. Replace it with `overwrite=True`."
        )
    if out is not None and out.is_file():
        raise RunFolderError(f"Expected a folder to write to, but {out} is a file.")
    settings = options.assessment_options()
    if options.annotations is None and (options.mpp is not None or options.pixels):
        raise SettingsError("`mpp` and `pixels` are about `annotations`. Add a folder of them.")
    annotations = options.open_annotations()
    results = open_results(options.predictions, options.validation, keep_seen=options.keep_seen)
    folds = results.load()
    if options.ordinal or options.order is not None:
        folds = tuple(_ordered(fold, options.order) for fold in folds)
    assessment = assess(folds, annotations, settings)
    tests = [by_patient(fold.test) if options.patients else fold.test for fold in folds]
    decisions = None
    if len(folds) == 1 and results.run is None:
        found = read_decisions(results.path, folds[0].test.target)
        decisions = measure_decisions(folds[0].test, found)
    evaluation = Evaluation(assessment, results, tuple(tests), decisions)
    if out is None:
        return evaluation
    tables = write_assessment(out, assessment)
    figures = [
        *write_run_figures(out / "figures", tests),
        *write_uncertainty_figures(out / "figures", tests, assessment.uncertainty),
    ]
    return replace(evaluation, tables=tuple(tables), figures=tuple(figures))


def _ordered(fold: TestedFold, order: Sequence[str] | None) -> TestedFold:
    """Return a fold whose classes are ordered."""
    validation = None if fold.validation is None else fold.validation.ordered(order)
    return replace(fold, test=fold.test.ordered(order), validation=validation)
