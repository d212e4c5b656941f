"""Maps of chosen slides: the attention of all models in a row, and the inducing points of SGPMIL.

Each map is of the first fold, by models that did not see the slide in training. As in the paper,
scores are scaled to [0, 1] within the slide. Slides and outlines are drawn where they are given.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sgpmil.bags.files import file_name
from sgpmil.bags.store import PackedStore
from sgpmil.errors import SettingsError, SgpmilError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.experiments.cohorts.cohort import Cohort, Row
from sgpmil.experiments.cohorts.plan import CohortOptions, CohortPlan, StudyRun
from sgpmil.explanation.map_layers import num_without_score
from sgpmil.explanation.run_explanation import ExplainOptions, explain
from sgpmil.explanation.slide_explanation import ModelScores
from sgpmil.report.explanation_files import write_explanation
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.map_figures import model_row_figure
from sgpmil.runs.description import is_run
from sgpmil.runs.run import Run, RunFold

_SHOWN = (0.0, 0.5, 1.0)
"""Ranks of the slides that are shown by default, by the probability of their own class."""


def write_maps(
    plan: CohortPlan, options: CohortOptions, rows: Sequence[Row]
) -> tuple[list[Path], list[str]]:
    """Draw maps and prototypes of some slides of the first fold that every row has finished.

    Args:
        plan: The plan of the study.
        options: Slides to show, and their files.
        rows: Rows to draw, the reference last.

    Returns:
        The files written, and reasons of what is missing, in sentences.

    Raises:
        SettingsError: A slide that is to be shown is no test slide of the fold.
    """
    folds = _first_folds(plan, rows)
    if not folds:
        return [], ["No fold is finished by every model: there are no maps yet."]
    reference = folds[rows[-1].title]
    table = reference.predictions
    shown = _chosen(plan.cohort, table, options.show)
    source = plan.data.bags.source
    store = source.path if isinstance(source, PackedStore) else options.features
    named = options.with_regions
    out = plan.out / "maps"
    explaining = ExplainOptions(
        run=reference.path,
        only=shown,
        slides=options.slides,
        features=store,
        annotations=named.annotations,
        regions=named.regions,
        min_coverage=named.min_coverage,
        mask_downsample=named.mask_downsample,
        scale="minmax",
        out=out,
        overwrite=True,
    )
    material = explaining.read_material()
    # The explanation of a fold by itself calls it 0.
    material = replace(
        material, folds=tuple(replace(f, checkpoint=reference.checkpoint) for f in material.folds)
    )
    written = write_explanation(explaining, material)
    files = sorted(out.rglob("*.png"))
    notes = [*written.notes, *(s.reason for s in written.slides if s.status == "failed")]
    explanation = explain(explaining, material)
    for name in shown:
        models = []
        for title, fold in folds.items():
            scores = fold.instance_scores(name)
            if scores is None or scores.coords is None or num_without_score(scores):
                notes.append(f"{title} has no scores of '{name}' that can be placed.")
                continue
            models.append(ModelScores(title, scores, None))
        if not models:
            continue
        slide = explanation.slide(name)
        path = out / f"models-{file_name(name)}.png"
        figure = model_row_figure(models, slide.picture, slide.title, scale="minmax")
        save_figure(figure, path)
        files.append(path)
    return files, list(dict.fromkeys(notes))


def try_maps(
    plan: CohortPlan, options: CohortOptions, rows: Sequence[Row]
) -> tuple[list[Path], list[str]]:
    """Draw the maps; where they cannot be drawn, say why instead of failing the study.

    Raises:
        SettingsError: A slide that is to be shown is no test slide of the fold.
    """
    try:
        return write_maps(plan, options, rows)
    except SettingsError:
        raise
    except SgpmilError as error:
        return [], [f"There are no maps: {error}"]


def _first_folds(plan: CohortPlan, rows: Sequence[Row]) -> dict[str, RunFold]:
    """Return the first fold that every row has finished with its first seed, by title."""
    firsts: dict[str, StudyRun] = {}
    for run in plan.runs:
        firsts.setdefault(run.row.name, run)
    runs = [firsts[row.name] for row in rows]
    if not runs or not all(is_run(run.path(plan.out)) for run in runs):
        return {}
    opened = {run.row.title: Run.open(run.path(plan.out)).folds for run in runs}
    for name in plan.folds:
        if all(name in folds and folds[name].is_done for folds in opened.values()):
            return {title: folds[name] for title, folds in opened.items()}
    return {}


def _chosen(cohort: Cohort, table: PredictionTable, asked: Sequence[str]) -> tuple[str, ...]:
    known = {prediction.slide_id: prediction for prediction in table.predictions}
    strange = [name for name in asked if name not in known]
    if strange:
        raise SettingsError(
            f"Expected slides to show (`show`) among the {len(known)} test slides of the first "
            f"fold, but got '{strange[0]}'. Name one of them."
        )
    if asked:
        return tuple(asked)
    classes = cohort.positive_classes or tuple(range(1, len(cohort.classes)))
    positive = [p for p in known.values() if p.label in classes] or list(known.values())
    order = np.argsort([-float(p.probs[p.label or 0]) for p in positive], kind="stable")
    places = [round(share * (len(order) - 1)) for share in _SHOWN]
    return tuple(dict.fromkeys(positive[int(order[place])].slide_id for place in places))
