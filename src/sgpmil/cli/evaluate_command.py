"""`sgpmil evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sgpmil.cli.annotation_options import (
    AnnotationsPath,
    MaskDownsample,
    MinCoverage,
    Regions,
    annotation_folder,
)
from sgpmil.cli.assessment_output import print_assessment
from sgpmil.cli.output import console
from sgpmil.errors import RunFolderError, SettingsError

if TYPE_CHECKING:
    from sgpmil.evaluation.assessment import Assessment, AssessmentOptions, TestedFold

__all__ = ["evaluate"]


def evaluate(
    predictions: Annotated[
        Path,
        typer.Argument(
            help="A run, the folder of a fold or of predictions, or a table: ours, CLAM's, "
            "STAMP's, slideflow's, or a CSV with columns slide_id, label, p_0, p_1, …"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and figures; nothing is written without.")
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            help="Predictions of validation slides by the same model, for thresholds, temperature "
            "and prediction sets. A run has its own."
        ),
    ] = None,
    patients: Annotated[
        bool, typer.Option("--patients", help="Measure patients: the mean over a patient's slides.")
    ] = False,
    bootstrap: Annotated[
        int, typer.Option(help="Rounds of the confidence intervals, by patient; 0 for none.")
    ] = 1000,
    coverage: Annotated[
        float, typer.Option(help="Share of slides whose label prediction sets promise to hold.")
    ] = 0.9,
    annotations: AnnotationsPath = None,
    regions: Regions = None,
    min_coverage: MinCoverage = 0.5,
    mask_downsample: MaskDownsample = None,
    mpp: Annotated[
        float | None,
        typer.Option(
            help="Level-0 micrometres a pixel: lesions are then joined and left out by size as in "
            "CAMELYON16."
        ),
    ] = None,
    best_on_test: Annotated[
        bool,
        typer.Option(
            "--best-on-test",
            help="Choose the threshold of instance scores on the test slides, as is often "
            "published; its numbers are too good.",
        ),
    ] = False,
    pixels: Annotated[
        bool,
        typer.Option(
            "--pixels", help="Also the published pixel protocol, which counts the background."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap and random attention.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an evaluation that OUT holds.")
    ] = False,
) -> None:
    """Measure predictions, ours or any other system's: right, calibrated, localised, sure."""
    from sgpmil.evaluation.assessment import AssessmentOptions, assess
    from sgpmil.evaluation.localisation.instance_evaluation import InstanceOptions
    from sgpmil.evaluation.localisation.lesion_detection import LesionSettings

    if out is not None and (out / "metrics.parquet").exists() and not overwrite:
        raise RunFolderError(f"{out} holds an evaluation already. Replace it with --overwrite.")
    if out is not None and out.is_file():
        raise RunFolderError(f"Expected a folder to write to, but {out} is a file.")
    options = AssessmentOptions(
        patients=patients,
        rounds=bootstrap,
        coverage=coverage,
        seed=seed,
        instances=InstanceOptions(
            min_coverage=min_coverage,
            threshold="best_on_test" if best_on_test else "validation",
            lesions=LesionSettings() if mpp is None else LesionSettings.camelyon16(mpp),
            pixels=pixels,
            seed=seed,
        ),
    )
    if annotations is None and (mpp is not None or pixels):
        raise SettingsError("--mpp and --pixels are about --annotations. Add a folder of them.")
    labels = annotation_folder(annotations, regions, mask_downsample)
    folds = _folds(predictions, validation)
    assessment = assess(folds, labels, options)
    print_assessment(assessment, str(predictions), "patients" if patients else "slides")
    if out is not None:
        _write(out, folds, assessment, options)


def _folds(path: Path, validation: Path | None) -> "tuple[TestedFold, ...]":
    from sgpmil.runs.results import open_results

    found = open_results(path, validation)
    if found.unfinished:
        total = len(found.folds) + len(found.unfinished)
        console.print(f"{len(found.unfinished)} of {total} folds are not done.")
    return found.load()


def _write(
    out: Path,
    folds: "tuple[TestedFold, ...]",
    assessment: "Assessment",
    options: "AssessmentOptions",
) -> None:
    from sgpmil.evaluation.assessment_files import write_assessment
    from sgpmil.evaluation.patients import by_patient
    from sgpmil.report.figures.run_figures import write_run_figures
    from sgpmil.report.figures.uncertainty_figures import write_uncertainty_figures

    tests = [by_patient(fold.test) if options.patients else fold.test for fold in folds]
    tables = write_assessment(out, assessment)
    figures = write_run_figures(out / "figures", tests)
    figures += write_uncertainty_figures(out / "figures", tests, assessment.uncertainty)
    console.print(f"Written to {out}: {len(tables)} tables, {len(figures)} figures in figures/.")
