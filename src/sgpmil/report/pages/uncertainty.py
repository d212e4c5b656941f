"""What the uncertainty of a run is worth, as a section of the page."""

import math
from collections.abc import Sequence

from sgpmil.evaluation.assessment import Assessment
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import UncertaintyRow, pooled_table
from sgpmil.report.figures.uncertainty_figures import (
    correct_wrong_figure,
    risk_coverage_figure,
    set_figure,
    temperature_figure,
)
from sgpmil.report.pages.blocks import Block, Pictures, Prose, Section, Table
from sgpmil.report.pages.images import DataImage, plot_image
from sgpmil.report.pages.number_texts import counted, told

__all__ = ["uncertainty_section"]


def uncertainty_section(assessment: Assessment, tests: Sequence[PredictionTable]) -> Section:
    """Tell whether uncertainty points at errors, and what validation slides make of it.

    Args:
        assessment: What was measured.
        tests: Predictions of each fold's labelled test slides.
    """
    found = assessment.uncertainty
    num_wrong = sum(fold.num_wrong for fold in found.folds)
    num_slides = sum(fold.num_slides for fold in found.folds)
    blocks: list[Block] = [
        Prose(
            f"{num_wrong} of {counted(num_slides, 'prediction')} are wrong. A useful uncertainty "
            "is higher for these: error AUROC is the chance that a wrong prediction is less "
            "certain than a right one (0.5 knows nothing). Compare every measure with “max "
            "probability”, which needs no posterior."
        ),
        Table(
            tuple(name.replace("\n", " ") for name in found.measure_header),
            found.measure_grid,
            "Whether each measure of uncertainty points at the errors.",
        ),
        Pictures(*_pooled(tests)),
    ]
    if found.calibration_rows:
        several = len(found.folds) > 1
        blocks += [
            Pictures(*_calibrated(tests, assessment)),
            Table(
                ("", "Mean ± SD", "All folds together") if several else ("", "Value"),
                tuple(_cells(row, several) for row in found.calibration_rows),
                "What validation slides bring: calibrated confidence and prediction sets.",
            ),
        ]
    else:
        blocks.append(
            Prose("There are no validation slides, so no temperature and no prediction sets.")
        )
    return Section("uncertainty", "Uncertainty", tuple(blocks))


def _cells(row: UncertaintyRow, several: bool) -> tuple[str, ...]:
    if not several:
        return row.name, told(row.mean)
    spread = "" if math.isnan(row.sd) else f" ± {told(row.sd)}"
    return row.name, f"{told(row.mean)}{spread}", told(row.pooled)


def _pooled(tests: Sequence[PredictionTable]) -> tuple[tuple[DataImage, ...], tuple[str, ...]]:
    pooled = pooled_table(tests)
    images = (
        plot_image(
            correct_wrong_figure(pooled), "Box plots of uncertainty, correct and wrong predictions."
        ),
        plot_image(risk_coverage_figure(pooled), "Risk–coverage curves."),
    )
    captions = (
        "Uncertainty of correct and wrong predictions, with Welch's test; all folds together.",
        "Errors that remain when the least certain slides are handed to a human. Lower is better; "
        "the oracle refuses exactly the wrong ones.",
    )
    return images, captions


def _calibrated(
    tests: Sequence[PredictionTable], assessment: Assessment
) -> tuple[tuple[DataImage, ...], tuple[str, ...]]:
    found = assessment.uncertainty
    images: list[DataImage] = []
    captions: list[str] = []
    scaled = [fold.scaled.temperature for fold in found.folds if fold.scaled is not None]
    if len(scaled) == len(tests):
        images.append(
            plot_image(
                temperature_figure(tests, scaled),
                "Reliability before and after temperature scaling.",
            )
        )
        captions.append("Temperature scaling, fitted on each fold's validation slides.")
    if found.pooled_sets:
        images.append(plot_image(set_figure(found.pooled_sets), "Coverage and size of sets."))
        captions.append(
            "Prediction sets: how often they hold the label, of all slides and of each class, and "
            "how many classes they name."
        )
    return tuple(images), tuple(captions)
