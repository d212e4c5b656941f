"""Figures of a cohort's study, as the paper has them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sgpmil.evaluation.metrics import get_metric
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import pooled_table
from sgpmil.evaluation.uncertainty.measures import uncertainty
from sgpmil.experiments.cohorts.cohort import Row
from sgpmil.experiments.cohorts.measures import LOCALISED
from sgpmil.experiments.cohorts.plan import CohortPlan
from sgpmil.experiments.cohorts.published import PUBLISHED_SLIDES
from sgpmil.experiments.cohorts.tables import ALPHA, StudyResults, counted_folds, metric_title
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.model_study_figures import (
    BoxPanel,
    box_figure,
    reliability_grid,
    uncertainty_grid,
)
from sgpmil.runs.description import is_run
from sgpmil.runs.run import Run


def write_figures(plan: CohortPlan, results: StudyResults) -> list[Path]:
    """Draw box plots of slides and instances, reliability, and uncertainty.

    Returns:
        The files written.
    """
    folder = plan.out / "figures"
    figures = {
        "slides.png": box_figure(
            _panels(results, localised=False), _title(results, "slides"), alpha=ALPHA
        )
    }
    if results.has_instances:
        panels = _panels(results, localised=True)
        figures["instances.png"] = box_figure(panels, _title(results, "instances"), alpha=ALPHA)
    tables = pooled_predictions(plan, results.rows)
    if tables:
        figures["reliability.png"] = reliability_grid(
            {row.title: table for row, table in tables.items()}
        )
    sampled = {
        row.title: table
        for row, table in tables.items()
        if not np.isnan(values := uncertainty(table, "std")).any() and float(values.max()) > 0
    }
    if sampled:
        figures["uncertainty.png"] = uncertainty_grid(sampled)
    for name, figure in figures.items():
        save_figure(figure, folder / name)
    return [folder / name for name in figures]


def pooled_predictions(plan: CohortPlan, rows: Sequence[Row]) -> dict[Row, PredictionTable]:
    """Read the predictions of each row's finished folds, without instances, into one table."""
    found: dict[Row, PredictionTable] = {}
    for row in rows:
        tables = []
        for run in plan.runs:
            path = run.path(plan.out)
            if run.row.name != row.name or not is_run(path):
                continue
            folds = Run.open(path).folds
            tables += [folds[name].predictions for name in plan.folds if folds[name].is_done]
        if tables:
            found[row] = pooled_table(tables)
    return found


def _panels(results: StudyResults, *, localised: bool) -> list[BoxPanel]:
    panels = []
    for i, metric in enumerate(LOCALISED if localised else results.cohort.metrics):
        tests = {row: results.test(row, metric, localised=localised) for row in results.rows}
        panels.append(
            BoxPanel(
                f"{metric_title(metric)} {get_metric(metric).arrow}",
                {
                    row.title: list(results.values(row, metric, localised=localised).values())
                    for row in results.rows
                },
                {row.title: test.p_value for row, test in tests.items() if test is not None},
                # Those of instances were measured otherwise: they have no place on this scale.
                {} if localised else _published(results, i),
            )
        )
    return panels


def _published(results: StudyResults, position: int) -> dict[str, float]:
    if not results.beside_paper:
        return {}
    slides = PUBLISHED_SLIDES.get(results.cohort.name, {})
    return {row.title: slides[row.name][position][0] for row in results.rows if row.name in slides}


def _title(results: StudyResults, what: str) -> str:
    return f"{results.cohort.title}, {what}: {counted_folds(results)}"
